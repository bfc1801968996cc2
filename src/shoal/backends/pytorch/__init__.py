"""PyTorch models: TorchScript, torch.export programs, AOTInductor packages and eager modules.

    backend --> model --> executor | cuda
       │          └─ archive (what a file is) --> script | exported | compiled | eager: a Program
       └─ completion

A Program describes the inputs and outputs of forward, as far as the file does, and can be called.

Importing anything but `names`, `archive` and `settings` imports torch, which takes seconds; the
registry does that when the first model needs this backend.
"""
