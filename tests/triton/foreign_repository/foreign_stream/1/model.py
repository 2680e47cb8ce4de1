"""A decoupled model that knows nothing of OmniFlow: one response for each word."""

import numpy as np
import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):  # type: ignore[no-untyped-def]
        for request in requests:
            sender = request.get_response_sender()
            for word in pb.get_input_tensor_by_name(request, "x").as_numpy()[0].split():
                sender.send(pb.InferenceResponse([pb.Tensor("y", np.array([word], dtype=object))]))
            sender.send(flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
