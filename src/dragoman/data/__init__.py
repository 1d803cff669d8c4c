"""From parallel text files to encoded pairs on disk."""
