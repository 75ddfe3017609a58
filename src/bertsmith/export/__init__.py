"""Models for other people and other tools: export to ONNX and OpenVINO, the model card, and the upload to a hub."""
