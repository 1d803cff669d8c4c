"""The command line: one file per command. torch is imported only where a command needs it."""
