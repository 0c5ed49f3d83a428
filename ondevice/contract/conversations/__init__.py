"""Answers of many clients at once, in one order."""
