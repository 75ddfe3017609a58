"""Models for other people and other tools: export to ONNX and OpenVINO, model card, and upload to a hub."""
