"""Measurements; each compares side by side in one run, since these are ratios and not absolute figures."""
