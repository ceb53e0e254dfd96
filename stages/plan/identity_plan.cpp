#include "stages/plan/identity_plan.hpp"

#include <algorithm>
#include <set>
#include <unordered_map>

#include "core/base/tables/counted.hpp"
#include "core/base/text/text.hpp"
#include "core/containers/hdf5/keys.hpp"
#include "core/formats/dcp/item_layout.hpp"
#include "core/formats/dcp/named_states.hpp"
#include "core/formats/hdf5/target.hpp"
#include "core/formats/headers/object_gate.hpp"
#include "core/formats/huggingface/config/config_dtype.hpp"
#include "core/formats/huggingface/shards.hpp"
#include "core/formats/model_files.hpp"
#include "core/formats/targets/target_parts.hpp"
#include "core/formats/torch_dist/dist_files.hpp"
#include "stages/plan/adapter/named_adapter.hpp"
#include "stages/plan/averaged_weights.hpp"
#include "stages/plan/config/config_conflicts.hpp"
#include "stages/plan/config/expected_names.hpp"
#include "stages/plan/gathering.hpp"
#include "stages/plan/quant/made_quant.hpp"
#include "stages/plan/source/catalog/source_names.hpp"
#include "stages/plan/source/state/named_masters.hpp"
#include "stages/plan/source/state/state_policy.hpp"
#include "stages/plan/target_dtype.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

class IdentityPlanner {
 public:
  IdentityPlanner(Checkpoint const& source, PlanRequest const& request)
      : source_(source), request_(request) {
    job_.warnings = source.warnings;
    job_.data_layout = request.target.data_layout;
    job_.stored_names = true;
    read_source();
    if (request.read.drop_optimizer) note_dropped(std::erase_if(unread_, is_optimizer_key));
    if (!unread_.empty())
      job_.warnings.push_back(unread_note(unread_, request.read.prefix) + ": they are left out");
  }

  JobPlan run(PlanLimits const& limits, std::function<void()> const& tensors_read) {
    check_keys();
    if (request_.read.true_vocab_size > 0)
      job_.warnings.push_back(fmt::format(
          "model.true_vocab_size = {} is not used: names are kept in this job, so no rows are those "
          "of a vocabulary",
          request_.read.true_vocab_size));
    for (std::string& text : config_warnings(source_, Json(), request_))
      job_.warnings.push_back(std::move(text));
    check_unread_state(source_, request_, job_.warnings);
    if (request_.read.drop_optimizer) drop_optimizer();
    if (!holds_objects()) drop_what_safetensors_cannot_hold();
    if (target().target().needs_masters) settle_named_states(source_, request_, tensors_);
    check_anything_left();
    check_objects();
    std::optional<huggingface::Folder> files;
    if (!holds_objects()) files = reference();
    settle_dtypes(files ? files : files_of(source_));
    make_source();
    merge_named_adapter(source_, request_, job_);
    if (files) check_names(*files);
    note_config(files ? files : files_of(source_));
    warn_of_adapter();
    if (files && request_.target.cast)
      files->config_text = huggingface::config_with_dtype(std::move(files->config_text),
                                                          *request_.target.cast, source_.place);
    job_.target.tensors.resize(tensors_.size());
    target().lay_out_named({source_, request_, *job_.model, tensors_, objects_, std::move(files)},
                           job_);
    if (request_.target.cast) state_dtype(*request_.target.cast, job_);
    if (job_.reference) job_.reference->weight_map = {};
    job_.source.shrink();
    job_.target.shrink();
    tensors_ = {};
    if (source_.others.averaged.empty()) tensors_read();
    average_weights(source_, request_, job_);
    if (!source_.others.averaged.empty()) tensors_read();
    quantise(job_, request_, source_);
    job_.plan = make_plan(*job_.model, job_.source, job_.target, limits, job_.opaque);
    count_behind_views(job_.plan, job_.source);
    return std::move(job_);
  }

  JobPlan run_source() {
    make_source();
    merge_named_adapter(source_, request_, job_);
    note_config(files_of(source_, request_.read.config));
    return std::move(job_);
  }

 private:
  Format const& target() const { return format_of(request_.target.format); }
  bool holds_objects() const { return target().target().objects; }

  void read_source() {
    StoredTable const& stored = source_.stored;
    tensors_.reserve(stored.tensors.size() + source_.state.scalars.size());
    auto const states = named_states_of(source_, request_);
    for (std::size_t t = 0; t < stored.tensors.size(); ++t) {
      StoredTensor const& one = stored.tensors[t];
      if (!one.name.starts_with(request_.read.prefix) && !states.contains(t)) {
        unread_.push_back(one.name);
        continue;
      }
      NamedTensor tensor{key_of(one.name), one.dtype, one.shape, narrow<std::uint32_t>(t)};
      auto const rounded = stored.rounded.find(t);
      if (rounded != stored.rounded.end()) {
        tensor.stored = tensor.dtype;
        tensor.dtype = rounded->second;
      }
      tensors_.push_back(std::move(tensor));
    }
    for (std::size_t s = 0; s < source_.state.scalars.size(); ++s) {
      StoredScalar const& one = source_.state.scalars[s];
      if (one.name.starts_with(request_.read.prefix))
        tensors_.push_back({key_of(one.name), one.dtype, {}, narrow<std::uint32_t>(s), true});
    }
    for (StoredObject const& object : stored.objects)
      if (object.name.starts_with(request_.read.prefix)) objects_.push_back(&object);
    if (source_.chunked.paths) sort_as_nested(*source_.chunked.paths);
  }

  SharedText key_of(SharedText const& name) const {
    return request_.read.prefix.empty() ? name
                                        : SharedText(name.substr(request_.read.prefix.size()));
  }

  /// The order of the nested state dict, which does not depend on how many ranks saved it.
  void sort_as_nested(std::vector<std::pair<std::string, dcp::Path>> const& planner_data) {
    std::unordered_map<std::string_view, std::size_t> places;
    for (auto const& [key, path] : planner_data) places.emplace(key, places.size());
    auto const place = [&](std::string const& key) {
      auto const found = places.find(key);
      return found == places.end() ? places.size() : found->second;
    };
    std::stable_sort(
        tensors_.begin(), tensors_.end(), [&](NamedTensor const& a, NamedTensor const& b) {
          return place(request_.read.prefix + a.key) < place(request_.read.prefix + b.key);
        });
    std::stable_sort(objects_.begin(), objects_.end(),
                     [&](StoredObject const* a, StoredObject const* b) {
                       return place(a->name) < place(b->name);
                     });
  }

  /// A prefix that ends inside a word leaves unintended names; keys that describe a model
  /// describe nothing here.
  void check_keys() const {
    for (NamedTensor const& tensor : tensors_)
      if (!request_.read.prefix.empty() && (tensor.key.empty() || tensor.key.starts_with(".")))
        fail(ErrorKind::usage,
             "[source] prefix = \"{}\": '{}{}' would become '{}'. End the prefix after the dot.",
             request_.read.prefix, request_.read.prefix, tensor.key, tensor.key);
    for (auto const& [key, size] :
         {std::pair("tp", request_.read.tp), std::pair("etp", request_.read.etp)})
      if (size != 1)
        fail(ErrorKind::usage,
             "[source] {} = {}: names are kept in this job, so no tensor is split. Remove the key.",
             key, size);
    if (request_.read.dequantise)
      fail(ErrorKind::usage,
           "[model] quant = \"dequantise-bf16\": names are kept in this job, so it is not known "
           "which tensors are scales. Remove the key, or choose a source and a target that a map "
           "describes.");
    if (!request_.read.config.empty())
      fail(
          ErrorKind::usage,
          "[source] config = \"{}\": names are kept in this job, so no model is described. Remove the key, or name a map.",
          request_.read.config.string());
  }

  void drop_optimizer() {
    std::size_t const before = tensors_.size() + objects_.size();
    std::erase_if(tensors_, [](NamedTensor const& one) { return is_optimizer_key(one.key); });
    std::erase_if(objects_, [](StoredObject const* one) { return is_optimizer_key(one->name); });
    note_dropped(before - tensors_.size() - objects_.size());
  }

  void note_dropped(std::size_t dropped) {
    if (dropped > 0)
      job_.warnings.push_back(
          fmt::format("{} of optimizer state {} dropped (source.optimizer = \"drop\")",
                      counted(dropped, "key"), agreeing(dropped, "is", "are")));
  }

  void drop_what_safetensors_cannot_hold() {
    std::vector<std::string> states;
    for (NamedTensor const& tensor : tensors_)
      if (is_optimizer_key(tensor.key)) states.push_back(tensor.key);
    std::string before;
    if (!states.empty() || (request_.read.drop_optimizer && request_.read.prefix.empty()))
      before = dcp::named_states(source_.stored, "").trainer;
    if (!states.empty())
      fail(ErrorKind::source,
           "{}: holds optimizer state ({}), which a Hugging Face folder cannot hold. Set {}.",
           origin(), listed(states, 3),
           before.empty()
               ? "source.optimizer = \"drop\""
               : fmt::format("source.prefix = \"{}\": weights alone begin with it", before));
    if (!before.empty())
      job_.warnings.push_back(fmt::format(
          "names of weights begin with '{0}', below which the trainer has saved the model, and are kept. Set source.prefix = \"{0}\" to cut it off",
          before));
    std::vector<std::string> objects;
    for (StoredObject const* object : objects_) objects.push_back(object->name);
    if (!objects.empty())
      job_.warnings.push_back("dropped, because safetensors files hold tensors only: " +
                              listed(objects, 6));
    objects_.clear();
  }

  void check_anything_left() const {
    if (!tensors_.empty() || !objects_.empty()) return;
    fail(ErrorKind::usage,
         "[source] prefix = \"{}\": {} has no such key. Check the keys with reshard ls.",
         request_.read.prefix, origin());
  }

  std::string origin() const { return source_.folder.string(); }

  void make_source() {
    std::vector<PlainTensor> plain;
    for (NamedTensor const& tensor : tensors_) plain.push_back({tensor.key, tensor.shape});
    job_.model = std::make_unique<Model>(plain, origin());
    for (fs::path const& file : source_.files) job_.source.files.push_back(file.string());
    job_.source.tensors.resize(tensors_.size());
    job_.source.blobs.reserve(tensors_.size());
    NamedTarget const names{source_, request_, *job_.model, tensors_, objects_, {}};
    for (std::size_t t = 0; t < tensors_.size(); ++t)
      for (SourceBox const& box : boxes_of(source_, tensors_[t])) {
        auto const& [key, dtype, shape, number, scalar, stored, cast] = tensors_[t];
        Blob blob{box.file, box.offset_bytes, stored.value_or(dtype), key};
        if (blob.dtype != dtype)
          blob = job_.source.computed(blob, elements_of(box),
                                      cast ? ViewKind::to_dtype : ViewKind::round, dtype);
        job_.source.add(
            std::move(blob),
            {names.piece(t, box.box, box.strides.empty() ? row_major(box.box) : box.strides)},
            false);
      }
    note_states();
  }

  /// Applies target.dtype to the tensors, which keep their names.
  void settle_dtypes(std::optional<huggingface::Folder> const& files) {
    NamedCasts const casts = cast_named(tensors_, source_, request_, files);
    request_.target.cast = job_.dtypes.cast = casts.dtype;
    job_.dtypes.changes = casts.changes;
    job_.warnings.insert(job_.warnings.end(), casts.warnings.begin(), casts.warnings.end());
  }

  /// From the first to the last element of a box.
  static Index elements_of(SourceBox const& box) {
    Index elements = 1;
    for (std::size_t d = 0; d < box.box.begin.size(); ++d) {
      Index const extent = box.box.end[d] - box.box.begin[d];
      elements = box.strides.empty() || elements * extent == 0
                     ? elements * extent
                     : elements + (extent - 1) * box.strides[d];
    }
    return elements;
  }

  /// Which tensors are optimizer state of which others.
  void note_states() {
    if (source_.format->id() == FormatId::huggingface) return;  // has none
    StoredView const view = source_.format->view(source_, request_.read.prefix);
    if (view.state_tables.empty()) return;
    std::unordered_map<std::string_view, TensorId> numbers;
    for (std::size_t t = 0; t < tensors_.size(); ++t)
      numbers.emplace(tensors_[t].key, TensorId{narrow<std::uint32_t>(t)});
    std::vector<PlainState> states;
    auto const number = [&](std::size_t stored) {
      std::string const& name = source_.stored.tensors.name(stored);
      if (!name.starts_with(request_.read.prefix)) return numbers.end();
      return numbers.find(std::string_view(name).substr(request_.read.prefix.size()));
    };
    for (std::size_t s = 0; s < view.state_tables.size(); ++s)
      for (auto const& [name, at] : view.state_tables[s]) {
        auto const weight = view.weights.find(name);
        if (weight == view.weights.end()) continue;
        auto const parameter = number(weight->second);
        auto const state = number(at);
        if (parameter != numbers.end() && state != numbers.end())
          states.push_back({parameter->second, view.states[s], state->second});
      }
    job_.model->note_states(states);
  }

  void note_config(std::optional<huggingface::Folder> const& files) {
    if (files) job_.configs.named = files->config;
  }

  /// The source's own files, or those of target.reference, which say the same.
  std::optional<huggingface::Folder> reference() {
    std::optional<huggingface::Folder> own = files_of(source_);
    if (request_.options.huggingface.reference.empty()) return own;
    huggingface::Folder given = huggingface::open_reference(request_.options.huggingface.reference);
    for (std::string& text :
         reference_warnings({own ? own->config : Json(), Json()}, given, request_))
      job_.warnings.push_back(std::move(text));
    return given;
  }

  /// Warns that the scale of an adapter lies beside its weights.
  void warn_of_adapter() {
    std::optional<huggingface::Folder> const own = files_of(source_);
    if (!holds_objects() || !own || own->adapter.is_null()) return;
    job_.warnings.push_back(fmt::format(
        "{}, which states rank and scale of the adapter, does not come along, because names are "
        "kept in this job: copy it beside what is made of the target",
        (own->path / huggingface::adapter_config_name).string()));
  }

  /// Names that are not those of the config that lies beside them make no model.
  void check_names(huggingface::Folder const& files) {
    bool const own = source_.storage == Storage::whole && source_.names == NameOwner::family &&
                     source_.folder == files.path;
    bool const as_they_were = !files.adapter.is_null() || (own && request_.read.prefix.empty() &&
                                                           request_.options.dcp.prefix.empty());
    if (as_they_were) return;
    std::set<std::string, std::less<>> names;
    for (NamedTensor const& tensor : tensors_)
      names.insert(request_.options.dcp.prefix + tensor.key);
    auto const expected = expected_names(files.config, names, request_.read.library);
    if (!expected) return;
    for (auto const& [name, held] : repeated_names(files.config, names, request_.read.library))
      if (!held.copy_of.empty()) note_copy(name, held.copy_of);
    if (expected->lacking.empty()) return;
    std::string text = origin() + ": " + lacking_sentence(*expected, names, config_name_of(files));
    if (!expected->most_lack() || request_.read.map == "none")
      return job_.warnings.push_back(std::move(text));
    fail(ErrorKind::source,
         "{}. Convert the checkpoint that these were made from, remove a prefix with "
         "source.prefix, name a map with the source's names, or set model.map = \"none\" to write "
         "them unchanged.",
         text);
  }

  /// Two tensors under names of the target.
  void note_copy(std::string const& copy, std::string const& of) {
    auto const number = [&](std::string const& name) {
      return job_.model->find_tensor(
          std::string_view(name).substr(request_.options.dcp.prefix.size()));
    };
    auto const a = number(copy);
    auto const b = number(of);
    if (a && b && tensors_[index(*a)].shape == tensors_[index(*b)].shape)
      job_.copies.declared.emplace_back(*a, *b);
  }

  /// Objects that are in the way of a load must not be in the target; leaving them out is the job's
  /// choice.
  void check_objects() {
    ObjectGate gate(source_, request_);
    std::erase_if(objects_, [&gate](StoredObject const* object) { return !gate.admits(*object); });
    gate.warn(job_.warnings);
  }

  Checkpoint const& source_;
  PlanRequest request_;
  JobPlan job_;
  std::vector<std::string> unread_;  ///< what source.prefix leaves out
  std::vector<NamedTensor> tensors_;
  std::vector<StoredObject const*> objects_;
};

/// Whether the target's names are those that the source has: Megatron's own of one format.
bool has_own_names(Checkpoint const& source, PlanRequest const& request) {
  return source.format->id() == request.target.format && source.names == NameOwner::megatron;
}

void check_formats(Checkpoint const& source, PlanRequest const& request) {
  bool const named = request.read.map == "none";
  if (source.storage == Storage::shares)
    fail(
        ErrorKind::usage,
        "[model] map = \"none\": the files of a Megatron source hold parts that only a map can put together. Set map to \"auto\".");
  if (format_of(request.target.format).target().any_names) return;
  if (has_own_names(source, request) && !source.chunked.flattened) return;
  fail(ErrorKind::usage,
       "[model] map = \"{}\": the target's format has its own names, which only a map can give. "
       "Name {}.",
       request.read.map,
       named ? "the model's map" : "the model's config.json, or its folder, with source.config");
}

}  // namespace

bool keeps_names(Checkpoint const& source, PlanRequest const& request) {
  if (request.read.map == "none") return true;
  if (!request.options.dcp.map.empty() || request.changes.any()) return false;
  TargetTraits const target = format_of(request.target.format).target();
  bool const plain = source.storage == Storage::chunks && source.names == NameOwner::family;
  bool const described =
      !request.read.config.empty() || (plain && !source.model.config.is_null()) ||
      // Names that only a map can give need the config, wherever it lies.
      (plain && (target.names == NameOwner::megatron || (target.mapped && !target.any_names)) &&
       files_of(source).has_value());
  bool const own = target.keeps_own && has_own_names(source, request) &&
                   request.target.dtype == TargetDType::keep;
  bool const to_plain =
      own || !target.mapped || (plain && target.names == NameOwner::family && target.any_names);
  return request.read.map == "auto" && (to_plain || (plain && !described)) &&
         source.storage != Storage::shares;
}

JobPlan make_identity_plan(Checkpoint const& source, PlanRequest const& request,
                           PlanLimits const& limits, std::function<void()> const& tensors_read) {
  check_formats(source, request);
  JobPlan plan = IdentityPlanner(source, request).run(limits, tensors_read);
  if (source.names == NameOwner::megatron) plan.vocab = source.logical.vocab;
  return plan;
}

JobPlan identity_catalogue(Checkpoint const& source, PlanRequest const& request) {
  return IdentityPlanner(source, request).run_source();
}

}  // namespace reshard
