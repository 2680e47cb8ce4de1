#include <type_traits>

#include "kernel.h"

namespace omniflow {

void convert_as_kernel(const Conversion& conversion, Direction direction, const std::vector<PagePart>& parts) {
  // Fewer teams than pieces, so that every team's loop over further pieces is part of it.
  constexpr int32_t kTeams = 3;
  for_each_launch(conversion, direction, parts, [&](const Launch& launch, int vector) {
    const int32_t threads = kTeams * launch.lanes;
    for (int32_t part = 0; part < launch.parts_used; ++part) {
      for (int32_t thread = 0; thread < threads; ++thread) {
        with_vector(vector,
                    [&](auto bytes) { convert_thread<decltype(bytes)::value>(launch, part, thread, threads); });
      }
    }
  });
}

}  // namespace omniflow
