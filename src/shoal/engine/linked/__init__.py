"""The engine in a process of its own, and the front-end processes that use it.

    frontends ──▶ LinkedEngine ══ link ══ EngineService ──▶ LocalEngine
                  (front-end process)     (engine process)

Messages of a front end. Numbers are its own, and are never used twice on a link:

    infer      number, request             a full request, which the engine validates
    template   template, request           what the requests of the next groups have in common
    group      template, first number, ids, start, contents
    cancel     number                      its client has left
    call       number, method, arguments   one of `service.METHODS`
    seen       change                      nothing older than this is remembered any more
    tasks      model, counts               what a model's task did in the front end

Messages of the engine:

    response   number, response            one of a request's responses, the last one marked
    layout     layout, definition          names, shapes and sizes of outputs
    results    layout, numbers, contents   the only responses of requests of one template
    refused    error, numbers              requests of one template that found no room
    returned   number, value               the result of a call
    raised     number, error               its error
    changed    change, name                other versions of a model serve now

`messages` has the forms of requests, responses and models.
"""
