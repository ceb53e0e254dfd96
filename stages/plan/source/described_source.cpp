#include "stages/plan/source/described_source.hpp"

#include <algorithm>

#include "core/base/capture.hpp"
#include "core/containers/dcp/directory.hpp"
#include "core/formats/format.hpp"
#include "stages/plan/source/facts/stated_args.hpp"

namespace reshard {

SourceModel read_described(Checkpoint const& source, PlanRequest const& request,
                           bool carry_states) {
  SourceModel model;
  auto const failed = capture([&] { model = read_source_model(source, request, carry_states); });
  if (!failed) return model;
  if (failed->kind() == ErrorKind::source && source.names == NameOwner::megatron &&
      source.storage == Storage::chunks && !source.chunked.has_common_file &&
      !source.shares.shape && request.read.config.empty() && args_of(source).is_null())
    fail(ErrorKind::source,
         "{}: has neither {} nor args in another place, so nothing here describes the model. {}.",
         source.folder.string(), dcp::common_name, way_to_a_config(source));
  throw *failed;
}

bool may_keep_names(Checkpoint const& source, PlanRequest const& request) {
  return request.read.map == "auto" && source.names == NameOwner::family &&
         !source.others.adapter && !request.read.dequantise && request.read.true_vocab_size == 0 &&
         !request.changes.any();
}

std::string carried_note(Error const& unknown_form) {
  std::string sentence = unknown_form.sentence();
  sentence.resize(std::min(sentence.find(" model.map = \"none\""), sentence.size()));
  return "names and bytes are kept as they are, because of how weights are quantised: " + sentence;
}

PlanRequest behind_prefix(FoundPrefix const& found, PlanRequest request) {
  request.read.prefix = found.prefix;
  return request;
}

}  // namespace reshard
