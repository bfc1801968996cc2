"""`shoal plan`: how many replicas a load needs, from a measurement of one replica.

report of `shoal perf` --read_report--> Report: levels --plan--> Plan --> text, JSON
"""
