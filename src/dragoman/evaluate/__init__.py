"""How good translations are, in numbers that anyone can reproduce."""
