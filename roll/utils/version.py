"""The version of this project. setup.py reads it from here, so that a source tree knows it too."""

VERSION = "0.1.0"
