"""Checks of each exercise. A check returns None, or one line about the mistake.

Each module has `CHECKS`: functions of the student's module by the condition that they check. To name a mistake, a check
computes the result of the mistake and compares it with the student's result.
"""
