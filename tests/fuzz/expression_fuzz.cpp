// An expression of a model map, read and evaluated over a few facts: a value, or an Error of kind
// usage.

#include "core/mapping/expressions/expression.hpp"
#include "tests/fuzz/fuzz.hpp"

namespace reshard {
namespace {

std::optional<Json> fact(std::string_view key) {
  if (key == "layers") return Json(61);
  if (key == "list") return Json(Json::Array{Json(1), Json("two"), Json(INT64_MAX)});
  if (key == "text") return Json("full sliding full");
  if (key == "real") return Json(0.5);
  if (key == "least") return Json(INT64_MIN);
  if (key == "none") return Json();
  return std::nullopt;
}

}  // namespace
}  // namespace reshard

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  using namespace reshard;
  auto const expression = fuzz::accepted(
      ErrorKind::usage, [&] { return Expression::parse(fuzz::text_of(data, size), "fuzz"); });
  if (!expression) return 0;
  FUZZ_EXPECT(Expression::parse(expression->text(), "again").keys() == expression->keys());
  ExpressionScope scope;
  scope.key = fact;
  scope.call = [](std::string_view, std::span<Json const>) { return std::nullopt; };
  for (bool const exact : {false, true})
    for (bool const spreads : {false, true}) {
      scope.exact_division = exact;
      scope.absent_spreads = spreads;
      auto const value =
          fuzz::attempt(ErrorKind::usage, [&] { return expression->evaluate(scope); });
      auto const again =
          fuzz::attempt(ErrorKind::usage, [&] { return expression->evaluate(scope); });
      FUZZ_EXPECT(value.has_value() == again.has_value() &&
                  (!value || value->dump() == again->dump()));
    }
  return 0;
}
