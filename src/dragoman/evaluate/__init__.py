"""The quality of translations, in numbers that anyone can reproduce."""
