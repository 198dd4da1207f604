"""Tests of several processes that train together."""
