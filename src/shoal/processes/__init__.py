"""A server of several processes: front ends that share its ports, one engine, and a supervisor.

                     ┌─ front end 1 ══╗
    supervisor ──────┼─ front end N ══╬══ engine        ── control links    ══ requests
    (ports, signals) └────────────────╨─── engine

    supervisor   opens the ports, starts the others and restarts what ends; forwards signals
    frontend     frontends with a `LinkedEngine`
    engine       a `LocalEngine` with an `EngineService`, and no ports

The listening sockets belong to the supervisor, and all front ends accept from them: when one ends,
no connection is lost that it had not accepted. A process ends when its supervisor does.

Messages of the supervisor:

    start       options, sockets or how many   to both, once
                calls are repeated
    repeat      call                           to the engine, for each of them
    link        a descriptor                   to both: the two ends of a new link; the engine is
                                               told the front end's name and process number
    loaded      index, whether to log it       to front ends, when the engine has said so
    begin_exit                                 to the engine: not ready from now on
    reload                                     to both: SIGHUP
    stop        seconds                        finish what was begun within that time, then end
    registered, leaving, unregistered, settled to front ends: names that all of them know; `names`

Messages of the others:

    listening                                  a front end has opened its ports
    failed      problem                        it cannot start, and ends
    unlinked                                   a front end has lost its link to the engine
    loaded      problem, index                 the engine has loaded the models of the start
    controlled  call                           a client has loaded or unloaded a model
    register, unregister, known, unused        of a front end; see `names`
    stopped     clean                          the last one
"""
