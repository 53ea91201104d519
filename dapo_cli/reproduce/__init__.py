"""Runs a recorded run again, with what it was made of, and compares."""
