"""Finds a good config for a model by measuring: the implementation of `shoal tune`.

    config --> Space --> Search --point, clients--> MeasurementSetup (server, load) --> Measurement
                           '--> chosen point --> config.pbtxt, table, report

The search (`space`, `goal`, `search`) knows neither servers nor clocks: it calls a function and is
tested with simulated models. `measuring` is the function that measures a real server.
"""
