// A layout expression: it is read from its own text as the same one, and each of its tensors has
// digits that can be asked for.

#include "core/layout/layout_expr.hpp"
#include "tests/fuzz/fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  using namespace reshard;
  auto const layout =
      fuzz::accepted(ErrorKind::usage, [&] { return parse_layout(fuzz::text_of(data, size)); });
  if (!layout) return 0;
  LayoutExpr const again = parse_layout(layout->text);
  FUZZ_EXPECT(again.tag == layout->tag && again.dims.size() == layout->dims.size() &&
              again.tensors() == layout->tensors());
  for (std::string const& tensor : layout->tensors())
    for (LayoutExpr::Digit const& digit : layout->digits_of(tensor))
      FUZZ_EXPECT(!digit.axis.empty() && digit.column <= size + 1);
  return 0;
}
