"""The daemon: decides what is compiled when and by whom, and keeps the results. Imports no compiler."""
