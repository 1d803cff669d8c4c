"""Documents people have: text out of a file, and translations back into it. One file for each format."""
