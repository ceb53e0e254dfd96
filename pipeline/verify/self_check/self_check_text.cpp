#include <string>
#include <vector>

#include "core/base/tables/counted.hpp"
#include "core/base/text/text.hpp"
#include "pipeline/verify/self_check/self_check.hpp"

namespace reshard {

Json self_check_json(SelfCheckResult const& result) {
  auto const list = [](std::vector<std::string> const& texts) {
    return Json(Json::Array(texts.begin(), texts.end()));
  };
  return Json()
      .set("elements_per_tensor", result.elements_per_tensor)
      .set("seed", fmt::format("{}", result.seed))
      .set("tensors", result.tensors)
      .set("elements", result.elements)
      .set("converted", result.converted)
      .set("padding", result.padding)
      .set("computed", result.computed)
      .set("unplaced", result.unplaced)
      .set("not_covered", result.not_covered)
      .set("not_covered_names", list(result.not_covered_names))
      .set("wrong", result.wrong)
      .set("faults", list(result.faults))
      .set("why_not", result.why_not);
}

std::string self_check_summary(SelfCheckResult const& result) {
  if (!result.why_not.empty()) return fmt::format("nothing could be compared: {}", result.why_not);
  std::string text = fmt::format("{} elements of {}, seed {}", result.elements,
                                 counted(result.tensors, "stored tensor"), result.seed);
  if (result.converted > 0) text += fmt::format(", {} through a conversion", result.converted);
  if (result.computed + result.unplaced > 0)
    text +=
        fmt::format(", {} more not compared (computed values)", result.computed + result.unplaced);
  if (result.not_covered > 0)
    text += fmt::format("; nothing of {} ({})", counted(result.not_covered, "stored tensor"),
                        listed(result.not_covered_names, 3));
  return text;
}

std::string self_check_text(SelfCheckResult const& result) {
  std::string text;
  for (std::string const& fault : result.faults) text += fault + "\n";
  text += "self-check: " + self_check_summary(result);
  if (result.why_not.empty())
    text += result.sound() ? ": all as in the source" : fmt::format(": {} differ", result.wrong);
  return text + "\n";
}

}  // namespace reshard
