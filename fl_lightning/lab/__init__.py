"""The lab: tables of runs, comparisons and analyses of what the simulator has made.

It imports the simulator. Only `fl_lightning.__main__` and `fl_lightning.plot` import the lab.
"""
