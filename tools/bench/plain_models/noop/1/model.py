"""A plain Triton Python model that hands its input on: what any orchestration is measured against."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor("y", pb_utils.get_input_tensor_by_name(request, "x").as_numpy())]
            )
            for request in requests
        ]
