"""The command line: ``torchscan``, one file per command."""
