"""OpenVINO models: IR (model.xml and model.bin) and ONNX files.

backend   completes configs, loads and runs models
ports     what a model file declares
options   the runtime's properties, from parameters, backend settings and cores
"""
