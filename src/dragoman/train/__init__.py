"""From parallel text to a model directory."""
