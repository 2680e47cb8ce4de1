"""A model that knows nothing of OmniFlow."""

import numpy as np
import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):  # type: ignore[no-untyped-def]
        responses = []
        for request in requests:
            text = pb.get_input_tensor_by_name(request, "x").as_numpy()[0]
            if text == b"fail":
                responses.append(pb.InferenceResponse([], pb.TritonError("a foreign failure")))
                continue
            responses.append(pb.InferenceResponse([pb.Tensor("y", np.array([b"foreign " + text], dtype=object))]))
        return responses
