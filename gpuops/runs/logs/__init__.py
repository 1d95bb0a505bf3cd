"""Logs that are home, as lines on a terminal.

lines      bytes of many streams as lines, each saying whose it is (pure)
home_tail  lines of the files that are home, in the order in which they were written
events     when a run's nodes noted an event
"""
