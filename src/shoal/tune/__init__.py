"""Finds a good config for a model by measuring it: the engine of `shoal tune`.

    config --> Space --> Search --point, clients--> Rig (a server and a load) --> Measurement
                           '--> chosen point --> config.pbtxt, table, report

The search (`space`, `goal`, `search`) knows neither servers nor clocks: it asks a function and is
tested with made up models. `rig` is the function that measures for real.
"""
