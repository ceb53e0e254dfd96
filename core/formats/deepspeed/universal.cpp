#include "core/formats/deepspeed/universal.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <set>
#include <tuple>

#include "core/base/tables/counted.hpp"
#include "core/base/text/text.hpp"
#include "core/containers/dcp/directory.hpp"
#include "core/containers/torch/torch_frame.hpp"
#include "core/containers/torch/torch_types.hpp"
#include "core/formats/deepspeed/folder.hpp"
#include "core/formats/deepspeed/rank_header.hpp"

namespace reshard::deepspeed {
namespace {

namespace fs = std::filesystem;
using pickle::Document;
using pickle::NodeId;

class Universal {
 public:
  Universal(TargetDraft& draft, std::vector<UniversalTensor> const& tensors,
            UniversalRun const& run, std::function<std::vector<Piece>(std::size_t)> const& pieces)
      : draft_(draft),
        tensors_(tensors),
        run_(run),
        pieces_(pieces),
        folder_(fmt::format("global_step{}_universal", run_.iteration)) {}

  void lay_out() {
    std::vector<std::size_t> weights;
    std::set<std::string_view> stepped;
    std::set<std::string_view> trained;
    std::set<std::string_view> moved;  // by an optimizer with moments
    for (std::size_t t = 0; t < tensors_.size(); ++t) {
      UniversalTensor const& tensor = tensors_[t];
      if (tensor.slot.empty()) {
        weights.push_back(t);
        continue;
      }
      (tensor.slot == step_slot ? stepped : trained).insert(tensor.parameter.text());
      if (tensor.slot != step_slot && tensor.slot != master_word)
        moved.insert(tensor.parameter.text());
      add_state(t);
    }
    for (std::string_view const slot : {"exp_avg", "exp_avg_sq"}) add_lacking(slot);
    for (std::string_view const parameter : trained) {
      if (stepped.contains(parameter)) continue;
      if (!moved.contains(parameter)) note_stand_in(parameter, step_slot);
      add_step(parameter);
    }
    warn_of_untrained(weights, trained);
    add_settings();
    add_model_states(weights);
    draft_.texts.push_back({std::string(latest_universal_name), folder_.string(), true, {}});
  }

 private:
  fs::path file_of(std::string_view parameter, std::string_view slot) const {
    return folder_ / universal_folder_name / parameter / fmt::format("{}.pt", slot);
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

  /// Adds a file whose tensors, in order, are these.
  void add_file(fs::path const& path, FileLayout const& layout,
                std::vector<std::size_t> const& tensors) {
    auto const file = static_cast<std::uint32_t>(draft_.files.size());
    draft_.target.files.push_back(path.string());
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      UniversalTensor const& tensor = tensors_[tensors[i]];
      draft_.target.add({file, layout.offsets_bytes[i], tensor.dtype, tensor.key},
                        pieces_(tensors[i]), false);
    }
    draft_.files.push_back({path, layout.size_bytes, {}, layout.frame});
  }

  /// {"cat_dim": 0, "param": tensor}; a step is a bare one. Such a file depends only on slot, dtype
  /// and shape: equal ones are laid out once.
  void add_state(std::size_t number) {
    UniversalTensor const& tensor = tensors_[number];
    auto const [known, is_new] =
        states_.try_emplace({tensor.slot, tensor.dtype, tensor.shape.sizes()});
    if (is_new) {
      Document document;
      NodeId const node = document.add_tensor(tensor.dtype, tensor.shape);
      document.root = tensor.slot == step_slot ? node : param_dict(document, node);
      known->second = laid_out(document, tensor.slot);
    }
    add_file(file_of(tensor.parameter.text(), tensor.slot), known->second, {number});
  }

  static NodeId param_dict(Document& document, NodeId tensor) {
    NodeId const dict = document.add_dict();
    document.set(dict, "cat_dim", document.add_int(0));
    document.set(dict, "param", tensor);
    return dict;
  }

  /// Adds zeros, Adam's moments before its first step, where weights are alone or other parameters
  /// have the slot: DeepSpeed's stage 3 loads no parameter without it.
  void add_lacking(std::string_view slot) {
    std::set<std::string_view> held;
    for (UniversalTensor const& one : tensors_)
      if (one.slot == slot) held.insert(one.parameter.text());
    if (held.empty() && !run_.weights_alone) return;
    for (UniversalTensor const& one : tensors_)
      if (one.slot == master_word && !held.contains(one.parameter.text())) {
        note_stand_in(one.parameter.text(), slot);
        draft_.texts.push_back(
            {file_of(one.parameter.text(), slot), "", false, [slot, shape = one.shape] {
               Document document;
               document.root = param_dict(document, document.add_repeated(DType::f32, shape));
               return dcp::torch_file_bytes(
                   document, slot, [](std::size_t) { return std::string(sizeof(float), '\0'); });
             }});
      }
  }

  void note_stand_in(std::string_view parameter, std::string_view slot) {
    if (!run_.weights_alone) stand_ins_.push_back(fmt::format("{}/{}", parameter, slot));
  }

  /// A step that the source has as a number, the same for all parameters.
  void add_step(std::string_view parameter) {
    if (!run_.steps) return;
    if (step_.empty()) {
      Document document;
      step_ = small_file(document, step_slot, add_steps(document));
    }
    draft_.texts.push_back(
        {file_of(parameter, step_slot), "", false, [step = step_] { return step.text(); }});
  }

  NodeId add_steps(Document& document) const {
    if (run_.tensor_steps) return document.add_tensor(DType::f32, {});
    return document.add_int(static_cast<std::int64_t>(*run_.steps));
  }

  /// A file in memory; its only tensor can be the steps.
  std::string small_file(Document& document, std::string_view archive, NodeId root) const {
    document.root = root;
    return dcp::torch_file_bytes(document, archive, [this](std::size_t) {
      auto const steps = static_cast<float>(run_.steps.value_or(0));
      std::string bytes(sizeof steps, '\0');
      std::memcpy(bytes.data(), &steps, sizeof steps);
      return bytes;
    });
  }

  /// zero/optimizer_state.pt: stages 1 and 2 read param_groups at the top, stage 3 below.
  void add_settings() {
    Document document;
    NodeId const root = document.add_dict();
    auto const copy = [&] { return document.add_copy(run_.groups, run_.groups.root); };
    document.set(root, "ds_version", document.add_string(run_.version));
    document.set(root, "param_groups", copy());
    NodeId const inner = document.add_dict();
    NodeId const states = document.add_dict();
    NodeId const first = document.add_dict();
    document.set(first, step_slot, add_steps(document));
    NodeId const zero = document.add_int(0);
    document.at(states).items = {zero, first};
    document.set(inner, "state", states);
    document.set(inner, "param_groups", copy());
    document.set(root, "optimizer_state_dict", inner);
    if (run_.weights_alone) document.set(root, weights_alone_key, document.add_bool(true));
    if (!stand_ins_.empty()) {
      std::vector<NodeId> files;
      for (std::string const& file : stand_ins_) files.push_back(document.add_string(file));
      document.set(root, stand_ins_key, document.add_list(std::move(files)));
    }
    draft_.texts.push_back({folder_ / universal_folder_name / universal_settings_name,
                            small_file(document, "optimizer_state", root),
                            false,
                            {}});
  }

  /// Adds the weights and the run state stored with them. Which of the two files DeepSpeed opens
  /// depends on the stage of the loading run.
  void add_model_states(std::vector<std::size_t> const& weights) {
    Document document = model_states(weights);
    fs::path const path = folder_ / model_states_name;
    add_file(path, laid_out(document, path.stem().string()), weights);
    Document split = model_states({});
    NodeId const root = split.root;
    draft_.texts.push_back({folder_ / split_model_states_name,
                            small_file(split, "zero_pp_rank_0_mp_rank_00_model_states", root),
                            false,
                            {}});
  }

  Document model_states(std::vector<std::size_t> const& weights) const {
    Document document;
    document.root = document.add_dict();
    std::vector<NodeId> pairs;
    for (std::size_t const t : weights) {
      pairs.push_back(document.add_string(tensors_[t].parameter.text()));
      pairs.push_back(document.add_tensor(tensors_[t].dtype, tensors_[t].shape));
    }
    document.set(document.root, "module", add_ordered_dict(document, std::move(pairs)));
    run_.add_states(document);
    return document;
  }

  /// DeepSpeed restores only parameters with state.
  void warn_of_untrained(std::vector<std::size_t> const& weights,
                         std::set<std::string_view> const& trained) {
    std::vector<std::string> names;
    for (std::size_t const t : weights)
      if (std::string const& name = tensors_[t].parameter.text();
          !trained.contains(name) && std::ranges::count(run_.second_names, name) == 0)
        names.push_back(name);
    if (names.empty()) return;
    draft_.warnings.push_back(fmt::format(
        "{} without optimizer state ({}) {} in {}. DeepSpeed does not load them from a universal "
        "checkpoint: load them in the training program",
        counted(names.size(), "tensor"), listed(names, 4), agreeing(names.size(), "is", "are"),
        model_states_name));
  }

  TargetDraft& draft_;
  std::vector<UniversalTensor> const& tensors_;
  UniversalRun const& run_;
  std::function<std::vector<Piece>(std::size_t)> const& pieces_;
  fs::path folder_;
  std::map<std::tuple<std::string, DType, std::vector<Index>>, FileLayout> states_;
  std::vector<std::string> stand_ins_;  ///< universal.hpp
  SharedText step_;                     ///< the file with the steps; "" until it is asked for
};

}  // namespace

void lay_out_universal(TargetDraft& draft, std::vector<UniversalTensor> const& tensors,
                       UniversalRun const& run,
                       std::function<std::vector<Piece>(std::size_t)> const& pieces) {
  Universal(draft, tensors, run, pieces).lay_out();
}

}  // namespace reshard::deepspeed
