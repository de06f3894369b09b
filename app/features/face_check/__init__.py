"""Enrolled faces whose crops show no upright face: earlier versions made up the landmarks of turned ones."""
