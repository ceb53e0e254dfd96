#include "stages/plan/change/taken_layers.hpp"

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.hpp"
#include "core/base/text/text.hpp"
#include "core/formats/format.hpp"
#include "stages/plan/config/config_comparison.hpp"
#include "stages/plan/config/config_conflicts.hpp"
#include "stages/plan/config/expected_names.hpp"

namespace reshard {
namespace {

using Names = std::set<std::string, std::less<>>;

class LayerTaker {
 public:
  LayerTaker(Checkpoint& source, Checkpoint const& from, MapLibrary const& library)
      : source_(source), from_(from), library_(library) {}

  void run() {
    check_folder(source_, "the source");
    check_folder(from_, from_.place);
    PredictionNames const theirs = named(from_);
    if (theirs.counted == 0 || theirs.names.empty())
      fail(ErrorKind::source,
           "[target] mtp_from: the config.json of {} counts {} layers for multi-token prediction, "
           "and {} of its tensors are of such layers. Name a folder that has them.",
           from_.place, theirs.counted, theirs.names.size());
    PredictionNames own = named(source_);
    if (own.family != theirs.family || own.layers != theirs.layers)
      fail(ErrorKind::source,
           "[target] mtp_from: {} is a model of {} with {} layers, and the source one of {} with "
           "{}. Name a folder of the same model.",
           from_.place, theirs.family, theirs.layers, own.family, own.layers);
    bool const quantised = is_quantised(source_);
    if (quantised != is_quantised(from_))
      fail(ErrorKind::source,
           "[target] mtp_from: the weights of {} are quantised, and those of {} are not. "
           "Dequantise them first (model.quant = \"dequantise-bf16\").",
           quantised ? source_.place : from_.place, quantised ? from_.place : source_.place);
    count(theirs);
    for (std::string const& name : named(source_).names) own.names.insert(name);
    join(own.names, theirs.names);
    source_.others.taken_files = from_.files.size();
    note_differences();
  }

 private:
  static void check_folder(Checkpoint const& one, std::string const& place) {
    if (one.format->id() != FormatId::huggingface || one.model.config.is_null() ||
        !one.model.beside)
      fail(ErrorKind::source,
           "[target] mtp_from: {} is {}, and layers are taken from one Hugging Face folder with a "
           "config.json into another. Convert it to huggingface first.",
           place, one.format->name());
  }

  static bool is_quantised(Checkpoint const& one) {
    Json const* const settings = one.model.config.find("quantization_config");
    return settings != nullptr && !settings->is_null();
  }

  PredictionNames named(Checkpoint const& one) const {
    Names stored;
    for (StoredTensor const& tensor : one.stored.tensors) stored.emplace(tensor.name);
    auto names = prediction_names(one.model.config, stored, library_);
    if (!names)
      fail(ErrorKind::source,
           "[target] mtp_from: no map describes the model of {}, so it is not known which tensors "
           "are of layers for multi-token prediction. Remove the key.",
           one.place);
    return *std::move(names);
  }

  /// Lets the source's config.json count the layers of the other.
  void count(PredictionNames const& theirs) {
    std::string const place = config_name_of(*source_.model.beside);
    source_.model.config = huggingface::patched_config(source_.model.config, theirs.counts);
    source_.model.beside->config = source_.model.config;
    source_.model.beside->config_text = huggingface::patched_config_text(
        std::move(source_.model.beside->config_text), theirs.counts, place);
  }

  void join(Names const& left_out, Names const& taken) {
    StoredTable joined;
    auto const add = [&joined](Checkpoint const& one, std::size_t t, std::uint32_t first_file) {
      StoredTensor const& tensor = one.stored.tensors[t];
      ItemPlace item = one.stored.chunks[tensor.first_chunk].item;
      item.file += first_file;
      joined.add_whole(tensor.name, tensor.dtype, tensor.shape, item);
    };
    Names kept;
    for (std::size_t t = 0; t < source_.stored.tensors.size(); ++t) {
      std::string name(std::string_view(source_.stored.tensors.name(t)));
      if (left_out.contains(name)) continue;
      add(source_, t, 0);
      kept.insert(std::move(name));
    }
    auto const first = narrow<std::uint32_t>(source_.files.size());
    for (std::size_t t = 0; t < from_.stored.tensors.size(); ++t) {
      std::string_view const name = from_.stored.tensors.name(t);
      if (taken.contains(name) && !kept.contains(name)) add(from_, t, first);
    }
    joined.objects = std::move(source_.stored.objects);
    source_.stored = std::move(joined);
    std::erase_if(source_.index.promised, [&](SharedText const& name) {
      return left_out.contains(std::string_view(name));
    });
    for (std::size_t f = 0; f < from_.files.size(); ++f) {
      source_.files.push_back(from_.files[f]);
      source_.stamps.taken.push_back(from_.stamps.taken[f]);
      source_.stamps.rank.push_back(from_.stamps.rank[f]);
    }
    source_.model.beside->indexed = false;  // its index is of other tensors
    source_.model.beside->further.assign(taken.begin(), taken.end());
  }

  void note_differences() {
    ConfigComparison const found = compare_configs(describe_model(source_, {}, library_),
                                                   describe_model(from_, {}, library_), library_);
    std::vector<std::string> keys;
    for (ConfigDifference const& one : found.differences) keys.push_back(one.key);
    if (!keys.empty())
      source_.warnings.push_back(fmt::format(
          "[target] mtp_from: the config.json of {} says something else of {}, and the target's is "
          "the source's",
          from_.place, listed(keys, 6)));
  }

  Checkpoint& source_;
  Checkpoint const& from_;
  MapLibrary const& library_;
};

}  // namespace

void take_prediction_layers(Checkpoint& source, Checkpoint const& from, MapLibrary const& library) {
  LayerTaker(source, from, library).run();
}

}  // namespace reshard
