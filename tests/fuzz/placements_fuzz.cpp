// The small languages of a job: a device mesh and placements on it, in two lines, and a pipeline
// layout. What is placed lies in the tensor.

#include "core/layout/pieces/placement.hpp"
#include "core/layout/pipeline_layout.hpp"
#include "tests/fuzz/fuzz.hpp"

namespace reshard {
namespace {

constexpr Index most_ranks = 64;

bool is_small(Mesh const& mesh) {
  Index ranks = 1;
  for (MeshAxis const& axis : mesh.axes()) {
    if (axis.size > most_ranks || ranks > most_ranks) return false;
    ranks *= axis.size;
  }
  return ranks <= most_ranks;
}

void expect_inside(Mesh const& mesh, std::vector<Placement> const& placements) {
  constexpr Index shape[] = {5, 3, 8};
  auto const boxes =
      fuzz::attempt(ErrorKind::usage, [&] { return placed_boxes(shape, mesh, placements); });
  if (!boxes) return;
  FUZZ_EXPECT(!boxes->empty());
  Index elements = 0;
  for (TensorBox const& box : *boxes) {
    Index volume = 1;
    for (std::size_t d = 0; d < 3; ++d) {
      FUZZ_EXPECT(0 <= box.begin[d] && box.begin[d] < box.end[d] && box.end[d] <= shape[d]);
      volume *= box.end[d] - box.begin[d];
    }
    elements += volume;
  }
  FUZZ_EXPECT(elements == 5 * 3 * 8);  // each element once
}

}  // namespace
}  // namespace reshard

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  using namespace reshard;
  std::string_view const text = fuzz::text_of(data, size);
  auto const stages = fuzz::attempt(ErrorKind::usage, [&] { return parse_pipeline_layout(text); });
  if (stages) {
    ++fuzz::accepted_inputs;
    FUZZ_EXPECT(!stages->empty() && stages->size() <= most_pipeline_stages);
  }
  std::size_t const end = std::min(text.find('\n'), text.size());
  auto const mesh =
      fuzz::attempt(ErrorKind::usage, [&] { return parse_mesh(text.substr(0, end)); });
  auto const placements = fuzz::attempt(ErrorKind::usage, [&] {
    return parse_placements(text.substr(std::min(end + 1, text.size())));
  });
  if (!mesh || !placements) return 0;
  ++fuzz::accepted_inputs;
  if (is_small(*mesh)) expect_inside(*mesh, *placements);
  return 0;
}
