#include "stages/plan/source/facts/megatron_form.hpp"

#include "core/base/error.hpp"

namespace reshard {

std::string no_megatron_reason(Model const& model) {
  Json const reason = model.value("no_megatron");
  return reason.text() == nullptr ? std::string() : *reason.text();
}

void require_megatron_form(Model const& model, std::string_view map_name, std::string_view side) {
  std::string const reason = no_megatron_reason(model);
  if (!reason.empty())
    fail(ErrorKind::usage,
         "{}: {} describes no Megatron names for this model: {}. Choose huggingface, hdf5 or "
         "dcp.",
         side, map_name, reason);
}

}  // namespace reshard
