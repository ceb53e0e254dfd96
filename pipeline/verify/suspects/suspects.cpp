#include "pipeline/verify/suspects/suspects.hpp"

#include <optional>

#include "core/base/capture.hpp"
#include "core/base/tables/counted.hpp"
#include "core/base/tables/integers.hpp"
#include "core/base/text/shown_name.hpp"
#include "core/base/threads/activity.hpp"
#include "core/plan/equal/digest_work.hpp"
#include "core/transport/rank_threads.hpp"
#include "core/transport/shared_sight.hpp"
#include "pipeline/records/target_check.hpp"
#include "pipeline/verify/digest.hpp"
#include "pipeline/verify/rank_state_look.hpp"
#include "pipeline/verify/suspects/survey_tensors.hpp"
#include "pipeline/verify/suspects/suspect_copies.hpp"
#include "pipeline/verify/suspects/suspect_padding.hpp"
#include "pipeline/verify/suspects/suspect_tensors.hpp"
#include "stages/read/open_source.hpp"
#include "stages/verify/surveys/suspect_rules.hpp"

namespace reshard {
namespace {

class SuspectSearch {
 public:
  SuspectSearch(SuspectQuery const& query, Comm const& comm) : query_(query), comm_(comm) {}

  SuspectReport run() {
    if (query_.job && query_.job->model.adapter == AdapterUse::merge)
      fail(
          ErrorKind::usage,
          "[model] adapter = \"merge\": suspects are looked for in stored weights. Set it to \"drop\" "
          "or \"only\", or look at the target of the job.");
    together_seeing(comm_, [&] { check_checkpoint_folder(query_.path); });
    Checkpoint weights = open_query(query_, {}, comm_);
    if (!weights.run.newer_saves.empty()) notes_.push_back(weights.run.newer_saves);
    RankStateLook look = look_at_rank_states(query_.path, weights, comm_);
    if (look.fault) notes_.push_back("the optimizer state was not read. " + look.fault->sentence());
    DigestQuery logical{query_};
    std::size_t const threads = rank_threads(comm_);
    bool const states = look.opened.has_value();
    checkpoint_ = states ? *std::move(look.opened) : weights;
    std::vector<std::string> ignored;  // what is not followed is explained by `digest`
    (void)follow_own_manifest(logical, checkpoint_, ignored, comm_);
    open_tensors(logical);
    if (!catalogue_.listing.prefix_note.empty()) notes_.push_back(catalogue_.listing.prefix_note);
    together(comm_, [&] { lay_out(); });
    begin_phase("reading the tensors");
    std::vector<SliceValues> const slices = survey_tensors(
        {checkpoint_, catalogue_, target_, surveyed_, false}, query_.memory_bytes, threads, comm_);
    together_seeing(comm_, [&] { note_repeated(catalogue_, query_.library, tensors_); });
    found_ = std::move(lacking_);
    add(suspects_in(tensors_, slices));
    begin_phase("comparing replicas");
    CopyFindings copies = compare_copies_inside(checkpoint_, catalogue_, threads, comm_);
    add(std::move(copies.suspects));
    PaddingFindings padding = look_at_padding(states ? weights : checkpoint_, catalogue_, logical,
                                              query_.memory_bytes, threads, comm_);
    add(std::move(padding.suspects));
    for (std::string& note : padding.notes) notes_.push_back(std::move(note));
    return report(slices.size(), copies);
  }

 private:
  Model const& model() const { return *catalogue_.model; }

  /// Experts whose scales lack are no weights of a family: then stored names say which they are.
  void open_tensors(DigestQuery& logical) {
    auto const failed = capture([&] { catalogue_ = open_logical(checkpoint_, logical, comm_); });
    std::vector<std::string> names;
    for (StoredTensor const& tensor : checkpoint_.stored.tensors)
      names.push_back(tensor.name.text());
    lacking_ = lacking_scales(names);
    if (!failed) return;
    if (lacking_.empty() || failed->kind() != ErrorKind::source || logical.map == "none")
      throw *failed;
    logical.map = "none";
    catalogue_ = open_logical(checkpoint_, logical, comm_);
    notes_.push_back("tensors are looked at by their stored names. " + failed->sentence());
  }

  void add(std::vector<Suspect> suspects) {
    for (Suspect& one : suspects) found_.push_back(std::move(one));
  }

  /// A file for each tensor, which holds its row-major bytes.
  void lay_out() {
    target_.tensors.resize(model().tensors().size());
    for (std::size_t t = 0; t < model().tensors().size(); ++t) {
      auto const id = TensorId(t);
      TensorPieces const& stored = catalogue_.source.tensors[t];
      if (!model().exists(id) || model().volume(model().tensor(id)) == 0 || stored.empty())
        continue;
      DType const dtype = catalogue_.source.blobs[stored.blob(0)].dtype;
      if (bits(dtype) % 8 != 0)
        fail(
            ErrorKind::source,
            "'{}': {} has elements smaller than a byte, which cannot be looked at by themselves. Name "
            "the checkpoint that it was quantised from.",
            model().tensor(id).name, name(dtype));
      add_tensor(id, dtype);
    }
  }

  void add_tensor(TensorId id, DType dtype) {
    SlicedTensor sliced = sliced_tensor(model(), id, dtype);
    sliced.tensor.first_slice = slices_;
    slices_ += sliced.tensor.slices.size();
    sliced.tensor.fused = fused_scale_of(model(), id);
    if (catalogue_.stored_names) sliced.tensor.scale = is_stored_scale(model().tensor(id).name);
    surveyed_.push_back({dtype, sliced.slice_bytes, sliced.tensor.slices.size()});
    std::string const& name = model().tensor(id).name;
    auto const file = narrow<std::uint32_t>(tensors_.size());
    target_.files.push_back(name);
    target_.add({file, 0, dtype, name}, logical_pieces(model(), id), false);
    tensors_.push_back(std::move(sliced.tensor));
  }

  SuspectReport report(std::size_t slices, CopyFindings const& copies) const {
    SuspectReport result;
    result.sound = found_.empty();
    Json rows = Json::array();
    std::optional<SuspectKind> before;
    for (Suspect const& one : found_) {
      rows.push(Json()
                    .set("kind", word_of(one.kind))
                    .set("tensor", one.tensor)
                    .set("found", one.found)
                    .set("count", one.count)
                    .set("cause", cause_of(one.kind)));
      if (rows.items()->size() > query_.row_limit) continue;
      if (before != one.kind)
        result.text += fmt::format("{}. {}\n", word_of(one.kind), cause_of(one.kind));
      before = one.kind;
      result.text += fmt::format("  {}: {}\n", shown_name(one.tensor), one.found);
    }
    if (found_.size() > query_.row_limit)
      result.text += fmt::format("  and {} more: see --json\n", found_.size() - query_.row_limit);
    for (std::string const& note : notes_) result.text += fmt::format("note: {}\n", note);
    result.text += fmt::format("{} in {} with {}", counted(found_.size(), "suspect"),
                               counted(tensors_.size(), "tensor"), counted(slices, "part"));
    if (copies.replicas > 0) result.text += ", " + counted(copies.replicas, "replica");
    if (copies.masters > 0) result.text += ", " + counted(copies.masters, "master weight");
    result.text += "\n";
    result.json.set("path", query_.path.string())
        .set("format", checkpoint_.format->name())
        .set("map", catalogue_.map_name)
        .set("tensors", tensors_.size())
        .set("parts", slices)
        .set("replicas", copies.replicas)
        .set("masters", copies.masters)
        .set("suspects", std::move(rows))
        .set("notes", Json(Json::Array(notes_.begin(), notes_.end())));
    return result;
  }

  SuspectQuery const& query_;
  Comm const& comm_;
  Checkpoint checkpoint_;
  JobPlan catalogue_;
  Catalog target_;
  std::vector<SuspectTensor> tensors_;
  std::vector<SurveyedTensor> surveyed_;
  std::vector<Suspect> lacking_;
  std::uint64_t slices_ = 0;
  std::vector<Suspect> found_;
  std::vector<std::string> notes_;
};

}  // namespace

SuspectReport find_suspects(SuspectQuery const& query, Comm const& comm) {
  return SuspectSearch(query, comm).run();
}

}  // namespace reshard
