"""The command line: flags and settings, the folder of a run, what a run reports."""
