"""The lab: tables of runs, comparisons and analyses of what the simulator has made."""
