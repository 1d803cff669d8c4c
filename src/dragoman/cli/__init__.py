"""The command line: one file a command. torch is imported only where a command needs it."""
