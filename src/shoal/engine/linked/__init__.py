"""The engine in a process of its own, and the front-end processes that use it.

    frontends ──▶ LinkedEngine ══ link ══ EngineService ──▶ LocalEngine
                  (front-end process)     (engine process)

Messages of a front end. Numbers are its own, and are never used twice on a link:

    infer      number, request, model      a full request, which the engine validates; for the tasks
                                           of a model that was replaced, the model's number
    template   template, request           what the requests of the next groups have in common
    group      template, first number, count, ids, start, contents
    photos     model, first number, count, start, contents
                                           for a model that classifies photos itself
    cancel     number                      its client has left
    call       number, method, arguments   one of `EngineService.methods`
    ping                                   asks whether the engine runs, while calls wait
    leave      number                      no client waits for the load of that call any more
    seen       change                      nothing older than this is remembered any more
    report     question, values            what the front end has counted
    replica    model, report               what it has counted for a model that it runs itself; None
                                           when it has closed that
    task       model, counts               what a model's task did in the front end
    retired    model                       no call of the model's task is under way any more
    trace      number, model, headers      a request has come in that may be sampled
    trace_call number, model, start        it is a call that leads to requests
    trace_end  number, events, calls, ...  it was answered, or its client has left

Messages of the engine:

    response   number, response            one of a request's responses, the last one marked
    layout     layout, definition          names, shapes and sizes of outputs
    results    layout, numbers, contents   the only responses of requests of one template; numbers
                                           are a list, or the first one and their count
    refused    error, numbers              requests of one template that found no room
    returned   number, value               the result of a call
    raised     number, error               its error
    pong                                   the answer to a ping
    changed    change, name                other versions of a model serve now
    question   question                    asks for a report
    retire     model                       begin no more calls of the model's task
    settings   change, tracing, log        whether requests may be sampled; settings of the log

`messages` has the forms of requests, responses and models.
"""
