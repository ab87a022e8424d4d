"""Is a model within its limits, and which checkpoint of a run is?"""
