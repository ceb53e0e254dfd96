#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <set>
#include <tuple>

#include "core/base/counted.hpp"
#include "core/base/text.hpp"
#include "core/containers/dcp/directory.hpp"
#include "core/containers/torch/torch_frame.hpp"
#include "core/containers/torch/torch_types.hpp"
#include "core/formats/deepspeed/folder.hpp"
#include "core/formats/deepspeed/run_state.hpp"
#include "core/formats/deepspeed/source.hpp"
#include "core/formats/deepspeed/zero_table.hpp"
#include "core/formats/model_files.hpp"
#include "core/formats/target_job.hpp"
#include "core/formats/target_parts.hpp"

namespace reshard::deepspeed {
namespace {

namespace fs = std::filesystem;
using pickle::Document;
using pickle::Kind;
using pickle::no_node;
using pickle::Node;
using pickle::NodeId;

constexpr std::string_view step_slot = "step";
/// Keys of model states that are written anew, or belong to one rank.
constexpr std::array left_out_keys = {"module", "optimizer", "frozen_param_fragments"};

/// A universal checkpoint, as deepspeed/checkpoint/ds_to_universal.py writes it: for each parameter
/// a folder with one file for each slot, which contains the complete tensor.
class Universal {
 public:
  Universal(NamedTarget const& job, TargetDraft& draft)
      : job_(job),
        draft_(draft),
        run_(*job.source.deepspeed),
        folder_(fmt::format("global_step{}_universal", run_.steps)) {}

  void run() {
    std::vector<std::size_t> weights;
    std::set<std::string_view> stepped;
    std::set<std::string_view> trained;
    for (std::size_t t = 0; t < job_.tensors.size(); ++t) {
      auto const state = parse_state_name(job_.tensors[t].key);
      if (!state) {
        weights.push_back(t);
        continue;
      }
      (state->slot == step_slot ? stepped : trained).insert(state->parameter);
      add_state(t, *state);
    }
    if (trained.empty())
      fail(ErrorKind::usage,
           "[target] format = \"deepspeed\": {} holds no optimizer state, or the job drops it, "
           "and a universal checkpoint needs it. Choose huggingface or dcp to convert only "
           "weights.",
           job_.source.place);
    for (std::string_view const parameter : trained)
      if (!stepped.contains(parameter)) add_step(parameter);
    warn_of_untrained(weights, trained);
    add_settings();
    add_model_states(weights);
    if (auto const files = files_of(job_.source)) add_carried(draft_, files);
    draft_.texts.push_back({std::string(latest_universal_name), folder_.string(), true, {}});
  }

 private:
  fs::path parameter_folder(std::string_view parameter) const {
    return folder_ / universal_folder_name / parameter;
  }

  static TensorBox whole(std::vector<Index> const& shape) {
    return {std::vector<Index>(shape.size(), 0), shape};
  }

  /// The frame of a file, and the offset of each tensor.
  struct FileLayout {
    std::uint64_t size_bytes = 0;
    std::vector<std::uint64_t> offsets_bytes;
    std::shared_ptr<FileFrame const> frame;
  };

  FileLayout laid_out(Document& document, std::string_view archive) const {
    TorchFilePlan plan = plan_torch_file(document, archive, draft_.data_layout);
    FileLayout result{plan.size_bytes, {}, nullptr};
    for (ZipRecord const& storage : plan.storages)
      result.offsets_bytes.push_back(storage.payload_offset_bytes);
    result.frame = std::make_shared<TorchFrame const>(std::move(plan));
    return result;
  }

  /// Adds a file whose tensors, in order, are those of the job.
  void add_file(fs::path const& path, FileLayout const& layout,
                std::vector<std::size_t> const& tensors) {
    auto const file = static_cast<std::uint32_t>(draft_.files.size());
    draft_.target.files.push_back(path.string());
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      NamedTensor const& tensor = job_.tensors[tensors[i]];
      TensorBox const box = whole(tensor.shape);
      draft_.target.add({file, layout.offsets_bytes[i], tensor.dtype, tensor.key},
                        {job_.piece(tensors[i], box, row_major(box))}, false);
    }
    draft_.files.push_back({path, layout.size_bytes, {}, layout.frame});
  }

  /// {"cat_dim": 0, "param": tensor}; a step is a bare one. Such a file depends only on slot, dtype
  /// and shape: equal ones are laid out once.
  void add_state(std::size_t number, StateName const& state) {
    NamedTensor const& tensor = job_.tensors[number];
    fs::path const path = parameter_folder(state.parameter) / fmt::format("{}.pt", state.slot);
    auto const [known, is_new] =
        states_.try_emplace({std::string(state.slot), tensor.dtype, tensor.shape});
    if (is_new) {
      Document document = state_document(state.slot, tensor);
      known->second = laid_out(document, path.stem().string());
    }
    add_file(path, known->second, {number});
  }

  static Document state_document(std::string_view slot, NamedTensor const& tensor) {
    Document document;
    NodeId const node = document.add_tensor(tensor.dtype, tensor.shape);
    document.root = node;
    if (slot == step_slot) return document;
    document.root = document.add_dict();
    document.set(document.root, "cat_dim", document.add_int(0));
    document.set(document.root, "param", node);
    return document;
  }

  /// A step that the source has as a number, the same for all parameters.
  void add_step(std::string_view parameter) {
    if (!run_.optimizer.steps) return;
    if (step_.empty()) {
      Document document;
      step_ = small_file(document, "step", add_steps(document));
    }
    draft_.texts.push_back({parameter_folder(parameter) / "step.pt", "", false,
                            [step = step_] { return step.text(); }});
  }

  NodeId add_steps(Document& document) const {
    if (run_.tensor_steps) return document.add_tensor(DType::f32, {});
    return document.add_int(static_cast<std::int64_t>(*run_.optimizer.steps));
  }

  /// A file in memory; its only tensor can be the steps.
  std::string small_file(Document& document, std::string_view archive, NodeId root) const {
    document.root = root;
    return dcp::torch_file_bytes(document, archive, [this](std::size_t) {
      auto const steps = static_cast<float>(run_.optimizer.steps.value_or(0));
      std::string bytes(sizeof steps, '\0');
      std::memcpy(bytes.data(), &steps, sizeof steps);
      return bytes;
    });
  }

  /// zero/optimizer_state.pt: stages 1 and 2 read param_groups at the top, stage 3 below.
  void add_settings() {
    bool const groups = !run_.optimizer.settings.empty();
    if (!groups || !run_.optimizer.steps)
      fail(ErrorKind::source,
           "{}: does not state the {} of its optimizer, which DeepSpeed's universal checkpoints "
           "need. {} Choose dcp as the target's format.",
           job_.source.place, groups ? "steps" : "parameter groups",
           groups ? "Optimizers that count none, such as SGD, have no universal form."
                  : "Saves with elastic_checkpoint have none.");
    Document const settings = settings_of(run_.optimizer);
    Document document;
    NodeId const root = document.add_dict();
    auto const copy = [&] { return document.add_copy(settings, settings.root); };
    document.set(root, "ds_version", document.add_string(version()));
    document.set(root, "param_groups", copy());
    NodeId const inner = document.add_dict();
    NodeId const states = document.add_dict();
    NodeId const first = document.add_dict();
    document.set(first, "step", add_steps(document));
    NodeId const zero = document.add_int(0);
    document.at(states).items = {zero, first};
    document.set(inner, "state", states);
    document.set(inner, "param_groups", copy());
    document.set(root, "optimizer_state_dict", inner);
    draft_.texts.push_back({folder_ / universal_folder_name / universal_settings_name,
                            small_file(document, "optimizer_state", root),
                            false,
                            {}});
  }

  std::string version() const { return run_.version.empty() ? "0.3.17" : run_.version; }

  /// Adds the weights and the run state stored with them. Which of the two files DeepSpeed opens
  /// depends on the stage of the loading run.
  void add_model_states(std::vector<std::size_t> const& weights) {
    TorchFile const source = read_torch_file(File::open_for_reading(run_.model_file));
    Document document = model_states(source.document, weights);
    fs::path const path = folder_ / model_states_name;
    add_file(path, laid_out(document, path.stem().string()), weights);
    Document split = model_states(source.document, {});
    NodeId const root = split.root;
    draft_.texts.push_back({folder_ / split_model_states_name,
                            small_file(split, "zero_pp_rank_0_mp_rank_00_model_states", root),
                            false,
                            {}});
    if (!lost_.empty())
      draft_.warnings.push_back("dropped, because they are not plain values: " +
                                listed(std::vector<std::string>(lost_.begin(), lost_.end()), 6));
  }

  Document model_states(Document const& source, std::vector<std::size_t> const& weights) {
    Document document;
    document.root = document.add_dict();
    std::vector<NodeId> pairs;
    for (std::size_t const t : weights) {
      pairs.push_back(document.add_string(job_.tensors[t].key));
      pairs.push_back(document.add_tensor(job_.tensors[t].dtype, job_.tensors[t].shape));
    }
    document.set(document.root, "module", add_ordered_dict(document, std::move(pairs)));
    for (auto const& [key, value] : source.members(source.root)) {
      if (std::ranges::find(left_out_keys, key) != left_out_keys.end()) continue;
      Document trial;
      trial.root = trial.add_copy(source, value);
      if (!trial.tensors.empty() ||
          !may_be_carried(pickle::not_to_carry(source, value), job_.request.read.foreign_classes)) {
        lost_.insert(key);
        continue;
      }
      document.set(document.root, key, document.add_copy(source, value));
    }
    return document;
  }

  /// DeepSpeed restores only parameters with state.
  void warn_of_untrained(std::vector<std::size_t> const& weights,
                         std::set<std::string_view> const& trained) {
    std::vector<std::string> names;
    for (std::size_t const t : weights)
      if (std::string const& name = job_.tensors[t].key;
          !trained.contains(name) && !is_second_name(name))
        names.push_back(name);
    if (names.empty()) return;
    draft_.warnings.push_back(fmt::format(
        "{} without optimizer state ({}) {} in {}. DeepSpeed does not load them from a universal "
        "checkpoint: load them in the training program",
        counted(names.size(), "tensor"), listed(names, 4), agreeing(names.size(), "is", "are"),
        model_states_name));
  }

  bool is_second_name(std::string const& name) const {
    return std::ranges::find(run_.second_names, name) != run_.second_names.end();
  }

  NamedTarget const& job_;
  TargetDraft& draft_;
  RunState const& run_;
  fs::path folder_;
  std::set<std::string> lost_;
  std::map<std::tuple<std::string, DType, std::vector<Index>>, FileLayout> states_;
  SharedText step_;  ///< the file with the steps; "" until it is asked for
};

[[noreturn]] void refuse_another_source(Checkpoint const& source) {
  fail(ErrorKind::usage,
       "[target] format = \"deepspeed\": only a DeepSpeed checkpoint becomes a universal "
       "checkpoint, and {} is a {} checkpoint. Choose another target.format.",
       source.place, source.format->name());
}

}  // namespace

TargetTraits DeepSpeedFormat::target() const {
  return {.names = NameOwner::family,
          .storage = Storage::whole,
          .mapped = false,
          .any_names = true,
          .objects = true,
          .carries_state = true};
}

void DeepSpeedFormat::lay_out(MappedTarget const& job, TargetDraft& /*draft*/) const {
  refuse_another_source(job.source);
}

void DeepSpeedFormat::lay_out_named(NamedTarget const& job, TargetDraft& draft) const {
  if (!job.source.deepspeed) refuse_another_source(job.source);
  Universal(job, draft).run();
}

}  // namespace reshard::deepspeed
