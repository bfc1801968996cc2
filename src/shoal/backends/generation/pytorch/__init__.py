"""Generation on GPUs: the same ONNX files run by PyTorch, with everything on the GPU.

encoder.onnx, decoder.onnx --graph--> operators of PyTorch --rows--> states, tokens: CUDA graphs
"""
