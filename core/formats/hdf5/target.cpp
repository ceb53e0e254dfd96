#include "core/formats/hdf5/target.hpp"

#include <algorithm>
#include <map>
#include <set>

#include <fmt/ranges.h>

#include "core/base/hash/crc64.hpp"
#include "core/containers/hdf5/keys.hpp"
#include "core/formats/hdf5/parts.hpp"
#include "core/formats/hdf5/source.hpp"
#include "core/formats/huggingface/config/config_dtype.hpp"
#include "core/formats/megatron/mcore/args.hpp"
#include "core/formats/megatron/mcore/hybrid_pattern.hpp"
#include "core/formats/megatron/mcore/paired_layers.hpp"
#include "core/formats/megatron/state/rank_settings.hpp"
#include "core/formats/model_files.hpp"
#include "core/formats/targets/target_parts.hpp"
#include "core/formats/torch_dist/dist_files.hpp"
#include "core/plan/equal/digest_work.hpp"

namespace reshard {
namespace {

std::uint64_t bytes_of(hdf5::DatasetSpec const& spec) {
  Index const elements = checked_volume(spec.shape, ErrorKind::source, spec.name);
  return static_cast<std::uint64_t>(elements) * static_cast<std::uint64_t>(bits(spec.dtype)) / 8;
}

std::uint64_t bytes_of(Hdf5Object const& object) {
  return object.copied ? object.copied->size_bytes : object.bytes.size();
}

/// The digest of an object: known, or at a place among the digests.
struct ObjectDigest {
  std::optional<std::size_t> place;
  std::uint64_t known = 0;
};

/// One file of the target, and where its digests come from.
struct Part {
  std::vector<hdf5::DatasetSpec> specs;
  std::vector<hdf5::ObjectSpec> objects;
  hdf5::RootAttributes attributes;
  std::vector<TensorId> tensors;  ///< of each dataset
  std::vector<ObjectDigest> of_objects;

  std::vector<FileSegment> finished(std::span<std::uint64_t const> digests) const {
    std::vector<std::uint64_t> values;
    for (TensorId const tensor : tensors)
      values.push_back(digests.empty() ? 0 : digests[index(tensor)]);
    for (ObjectDigest const& object : of_objects)
      values.push_back(!object.place ? object.known : digests.empty() ? 0 : digests[*object.place]);
    return hdf5::finished_frame(specs, objects, attributes, values);
  }
};

/// The bytes around the datasets, and the attributes with their digests.
class ContainerFrame : public FileFrame {
 public:
  /// `known`: objects whose bytes are known.
  ContainerFrame(Part part, std::vector<FileSegment> skeleton, std::vector<FileSegment> known)
      : part_(std::move(part)), skeleton_(std::move(skeleton)), known_(std::move(known)) {}

  std::span<FileSegment const> skeleton() const override { return skeleton_; }
  std::vector<FileSegment> rest(std::span<std::uint32_t const>,
                                std::span<std::uint64_t const> digests) const override {
    std::vector<FileSegment> segments = part_.finished(digests);
    segments.insert(segments.end(), known_.begin(), known_.end());
    return segments;
  }

 private:
  Part part_;
  std::vector<FileSegment> skeleton_;
  std::vector<FileSegment> known_;
};

class Layouter {
 public:
  Layouter(TargetDraft& job, Model const& model, Hdf5Target target)
      : job_(job), model_(model), target_(std::move(target)) {}

  std::vector<OpaqueCopy> run() {
    split();
    for (std::size_t p = 0; p < parts_.size(); ++p) place(p);
    if (parts_.size() > 1) add_index();
    return std::move(opaque_);
  }

 private:
  std::string file_name(std::size_t part) const {
    if (parts_.size() == 1) return std::string(hdf5::single_file_name);
    return hdf5::part_file_name(static_cast<Index>(part) + 1, static_cast<Index>(parts_.size()));
  }

  /// Datasets in order, as many to a file as fit; objects go into the first.
  void split() {
    parts_.emplace_back();
    std::uint64_t bytes = 0;
    for (Hdf5Object const& object : target_.objects) bytes += bytes_of(object);
    for (std::size_t i = 0; i < target_.specs.size(); ++i) {
      std::uint64_t const more = bytes_of(target_.specs[i]);
      if (bytes > 0 && bytes + more > target_.part_bytes) {
        parts_.emplace_back();
        bytes = 0;
      }
      bytes += more;
      parts_.back().specs.push_back(target_.specs[i]);
      parts_.back().tensors.push_back(target_.tensors[i]);
    }
    for (Hdf5Object const& object : target_.objects) {
      parts_.front().objects.push_back({object.name, bytes_of(object)});
      if (object.copied)
        parts_.front().of_objects.push_back({model_.tensors().size() + copied_++, 0});
      else
        parts_.front().of_objects.push_back(
            {std::nullopt, crc64(std::as_bytes(std::span(object.bytes)))});
    }
  }

  void place(std::size_t p) {
    Part& part = parts_[p];
    part.attributes = target_.attributes;
    part.attributes.emplace_back(hdf5::part_key, std::to_string(p + 1));
    part.attributes.emplace_back(hdf5::parts_key, std::to_string(parts_.size()));
    std::sort(part.attributes.begin(), part.attributes.end());
    hdf5::ContainerPlan plan = hdf5::plan_container(part.specs, part.objects, part.attributes);
    auto const file = narrow<std::uint32_t>(job_.files.size());
    job_.target.files.push_back(file_name(p));
    for (std::size_t i = 0; i < part.specs.size(); ++i)
      job_.target.add({file, plan.offset_bytes[i], part.specs[i].dtype, part.specs[i].name},
                      logical_pieces(model_, part.tensors[i]), false);
    std::vector<FileSegment> known;
    if (p == 0) known = place_objects(file, plan);
    TargetFile made;
    made.path = file_name(p);
    made.size_bytes = plan.size_bytes;
    made.frame =
        std::make_shared<ContainerFrame const>(part, std::move(plan.frame), std::move(known));
    job_.files.push_back(std::move(made));
  }

  std::vector<FileSegment> place_objects(std::uint32_t file, hdf5::ContainerPlan const& plan) {
    std::vector<FileSegment> known;
    for (std::size_t i = 0; i < target_.objects.size(); ++i) {
      Hdf5Object const& object = target_.objects[i];
      if (object.copied)
        opaque_.push_back({object.copied->file, file, object.copied->offset_bytes,
                           plan.object_offset_bytes[i], object.copied->size_bytes});
      else if (!object.bytes.empty())
        known.push_back({plan.object_offset_bytes[i], object.bytes});
    }
    return known;
  }

  void add_index() {
    Json::Object files;
    std::uint64_t total = 0;
    for (std::size_t p = 0; p < parts_.size(); ++p)
      for (hdf5::DatasetSpec const& spec : parts_[p].specs) {
        files.emplace_back(spec.name, file_name(p));
        total += bytes_of(spec);
      }
    Json index;
    index.set("metadata", Json().set("total_size", total))
        .set("weight_map", Json(std::move(files)));
    job_.texts.push_back({std::string(hdf5::index_name), index.dump(2) + "\n", true, {}});
  }

  TargetDraft& job_;
  Model const& model_;
  Hdf5Target target_;
  std::vector<Part> parts_;
  std::vector<OpaqueCopy> opaque_;
  std::size_t copied_ = 0;
};

std::string axis_label(Model const& model, LogicalAxis const& axis) {
  std::string const& name = model.axes()[axis.axis].name;
  return axis.div == 1 ? name : fmt::format("{}/{}", name, axis.div);
}

/// The args of the class of the model. The pattern of a hybrid model is part of them, without the
/// bounds of stages.
megatron::ArgValues class_args(Json const& args) {
  megatron::ArgValues values = megatron::class_values(args);
  auto const pattern = megatron::hybrid_pattern(args);
  if (!pattern) return values;
  int const layers = narrow<int>(pattern->decoder_layers());
  for (auto& [key, value] : values)
    if (key == pattern->key) value = megatron::with_stages(*pattern, std::span(&layers, 1));
  return values;
}

/// Args without layout and training state, which a container has not: the same model gives the same
/// bytes.
Json args_without_layout(Json args) {
  for (auto& [key, value] : class_args(args)) args.set(key, std::move(value));
  std::set<std::string> layout = {"no_save_optim", "no_save_rng"};
  for (auto const& [key, value] : megatron::target_args({{}, {}, 1}, args)) layout.insert(key);
  Json kept = Json::object();
  for (auto const& [key, value] : *args.members())
    if (!layout.contains(key)) kept.set(key, value);
  return kept;
}

}  // namespace

std::vector<OpaqueCopy> plan_hdf5_target(TargetDraft& job, Model const& model, Hdf5Target target) {
  return Layouter(job, model, std::move(target)).run();
}

std::vector<std::string> axis_labels(Model const& model, TensorId tensor) {
  std::vector<std::string> result;
  for (LogicalAxis const& axis : model.tensor(tensor).axes)
    result.push_back(axis_label(model, axis));
  return result;
}

std::string domain_text(Model const& model, TensorId tensor, std::optional<Index> half) {
  std::string text;
  LogicalTensor const& logical = model.tensor(tensor);
  std::vector<DomainAxis> domain = model.domain(logical);
  for (std::size_t d = 0; d < domain.size(); ++d) {
    if (half && model.axes()[domain[d].axis].name == "layer") {
      std::vector<Run> runs;
      for (Run const& run : domain[d].runs)
        for (Index layer = run.begin; layer < run.end; ++layer)
          runs.push_back({2 * layer + *half, 2 * layer + *half + 1, false});
      domain[d].runs = std::move(runs);
    }
    Index const whole = (model.axes()[domain[d].axis].size + domain[d].div - 1) / domain[d].div;
    if (domain[d].runs == std::vector<Run>{{0, whole, false}}) continue;
    text += fmt::format("{}{}", text.empty() ? "" : "; ", axis_label(model, logical.axes[d]));
    char separator = ' ';
    for (Run const& run : domain[d].runs) {
      text += fmt::format("{}{}:{}", separator, run.begin, run.end);
      separator = ',';
    }
  }
  return text;
}

Hdf5Target logical_hdf5_target(Model const& model, SourceModel const& source,
                               std::vector<std::optional<DType>> const& dtypes) {
  Hdf5Target target;
  for (std::size_t t = 0; t < model.tensors().size(); ++t) {
    auto const tensor = TensorId(t);
    std::string const& name = model.tensors()[t].name;
    RESHARD_EXPECT(!model.quantised(tensor));
    if (!model.exists(tensor) || !dtypes[t]) continue;
    target.specs.push_back({name, *dtypes[t], logical_shape(model, tensor),
                            axis_labels(model, tensor), domain_text(model, tensor)});
    target.tensors.push_back(tensor);
  }
  auto const number = [&model](std::string_view word) {
    Json const value = model.value(word);
    return value.integer() == nullptr ? std::string("0") : std::to_string(*value.integer());
  };
  target.attributes.emplace_back(hdf5::names_key, hdf5::logical_names);
  target.attributes.emplace_back(hdf5::map_key,
                                 source.names.maps.family ? source.names.maps.family->name : "");
  target.attributes.emplace_back(hdf5::vocab_key, number("vocab"));
  target.attributes.emplace_back(hdf5::prediction_layers_key, number("M"));
  std::string const config =
      source.facts.reference ? source.facts.reference->config_text : source.facts.config_text;
  if (!config.empty())
    target.objects.push_back({std::string(huggingface::config_name), config, {}});
  if (!source.facts.args.is_null())
    target.objects.push_back(
        {std::string(hdf5::args_name), args_without_layout(source.facts.args).dump(2) + "\n", {}});
  return target;
}

}  // namespace reshard

namespace reshard::hdf5 {
namespace {

/// Adds the slots and the run's optimizer settings.
void add_run_state(MappedTarget const& job, Hdf5Target& target) {
  auto const& slots = job.model.slots();
  target.attributes.emplace_back(slots_key,
                                 fmt::format("{}", fmt::join(slots.begin() + 1, slots.end(), " ")));
  pickle::Document const settings = common_settings(job.source, *job.record);
  DistRecord record;
  record.record = job.record;
  record.settings = &settings;
  record.args = class_args(job.read.facts.args);  // as stated next to it
  target.objects.push_back({std::string(common_name), made_common_text(record), {}});
}

}  // namespace

FormatOptions<TargetOptions> target_options() {
  return {
      {{FormatId::hdf5},
       keys::size("part_bytes", &TargetOptions::part_bytes,
                  "HDF5 only: the maximum size of a file. A larger tensor gets its own file.")},
      {{FormatId::hdf5},
       keys::choice(
           "io", &TargetOptions::io, {"auto", "direct", "independent", "collective"},
           "HDF5 only: \"direct\" (also \"auto\"), or through MPI-IO, \"independent\" or \"collective\". The files are the same.")},
  };
}

TargetTraits Hdf5Format::target() const {
  return {.names = NameOwner::logical,
          .any_names = true,
          .objects = true,
          .carries_state = true,
          .rank_states = true};
}

void Hdf5Format::lay_out(MappedTarget const& job, TargetDraft& draft) const {
  Hdf5Target target = logical_hdf5_target(job.model, job.read, job.dtypes);
  target.part_bytes = job.request.options.hdf5.part_bytes;
  target.attributes.emplace_back(software_version_key, job.request.target.tool_version);
  if (job.model.slots().size() > 1 && job.record != nullptr) add_run_state(job, target);
  if (job.read.facts.reference || !job.read.facts.config_text.empty())
    add_sidecars(draft, {job.read.facts.reference, job.read.facts.config_text});
  add_file_metadata(draft, files_of(job.source));
  draft.opaque = plan_hdf5_target(draft, job.model, std::move(target));
}

void Hdf5Format::lay_out_named(NamedTarget const& job, TargetDraft& draft) const {
  Hdf5Target target;
  for (std::size_t t = 0; t < job.tensors.size(); ++t) {
    NamedTensor const& tensor = job.tensors[t];
    target.specs.push_back({job.target_key(tensor.key), tensor.dtype, tensor.shape});
    target.tensors.push_back(TensorId(t));
  }
  target.attributes = {{std::string(map_key), ""},
                       {std::string(names_key), std::string(stored_names)},
                       {std::string(software_version_key), job.request.target.tool_version}};
  target.part_bytes = job.request.options.hdf5.part_bytes;
  auto const files = files_of(job.source);
  // Where the source is one container, so is the target. For a DCP folder the config is written
  // next to the file: its names may not be those of a family.
  bool const inside = !job.source.model.config.is_null() && job.source.names == NameOwner::family;
  if (inside && files && !files->config_text.empty())
    target.objects.push_back(
        {std::string(huggingface::config_name),
         job.request.target.cast
             ? huggingface::config_with_dtype(files->config_text, *job.request.target.cast,
                                              job.source.place)
             : files->config_text,
         {}});
  for (StoredObject const* object : job.objects)
    target.objects.push_back({job.renamed(object->name), {}, object->item});
  for (auto& [name, bytes] : job.made_objects())
    target.objects.push_back({job.renamed(name), std::move(bytes), {}});
  if (files) add_sidecars(draft, {files, {}});
  add_file_metadata(draft, files);
  draft.opaque = plan_hdf5_target(draft, job.model, std::move(target));
}

}  // namespace reshard::hdf5
