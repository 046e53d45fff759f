"""Graphs of modules as pictures, and in the languages of other tools."""
