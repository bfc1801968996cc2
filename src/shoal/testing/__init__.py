"""What people test their own backends, Python models and tasks with.

backends.BackendRunner            runs a backend without a server
python_models.PythonModelRunner   runs a Python model without a server
tasks.TaskRunner                  runs a task without a server
server.running_server             runs a real server inside a test, on free ports
"""

WAIT_SECS = 60  # how long a test waits for an event; only a failing test waits that long
