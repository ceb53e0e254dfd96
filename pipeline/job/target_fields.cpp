#include "pipeline/job/target_fields.hpp"

#include <utility>

#include "pipeline/job/format_field.hpp"

namespace reshard::job {
namespace {

using Target = JobSpec::Target;
using Layout = JobSpec::Layout;

/// Token ids have 32 bits.
constexpr std::int64_t most_vocabulary = (std::int64_t{1} << 31U) - 1;

std::vector<FormatId> const with_layout = {FormatId::megatron, FormatId::dcp, FormatId::torch_dist,
                                           FormatId::fsdp_dtensor};

void add_layout_key(std::vector<Field>& out, keys::Row<Layout> row, std::string axis = {}) {
  out.push_back({keys::within(&JobSpec::target, keys::within(&Target::layout, std::move(row))),
                 "target", with_layout, std::move(axis)});
}

/// The size of a parallel axis. One that no layout has by default is named only where it cuts.
void add_axis(std::vector<Field>& out, std::string const& axis, std::int64_t least,
              std::string_view comment) {
  struct Size {
    int value = 1;
  };
  keys::Row<Size> const size =
      keys::number("layout." + axis, &Size::value, least, most_ranks, comment);
  keys::Row<Layout> row{size.name, size.kind, size.comment, {}, size.range};
  row.show = [axis](Layout const& layout) { return std::to_string(layout.size(axis)); };
  row.set = [axis, set = size.set](Layout& layout, Value const& value) {
    Size read;
    auto problem = set(read, value);
    if (!problem && read.value == 1 && !Layout().sizes.contains(axis))
      layout.sizes.erase(axis);
    else if (!problem)
      layout.sizes[axis] = read.value;
    return problem;
  };
  add_layout_key(out, std::move(row), axis);
}

void add_common(std::vector<Field>& out) {
  add(out, "target", &JobSpec::target,
      {keys::with_example(
           keys::text(
               "path", &Target::path,
               "The checkpoint to make. It appears under this name only when it is complete."),
           "\"/path/to/target\""),
       keys::with_example(target_format(), "\"megatron\""),
       keys::flag("replace", &Target::replace,
                  "An existing target is refused; true replaces it in one step at the end."),
       keys::choice(
           "dtype", &Target::dtype, {"keep", "bf16", "fp16", "f32", "as-config"},
           "The dtype of floating weights, rounded to nearest even; \"as-config\": the one that "
           "config.json states. Optimizer state, integers, quantised\nweights and what the model map "
           "keeps in F32 stay as they are."),
       keys::choice(
           "reflink", &Target::reflink, {"auto", "always", "never"},
           "\"auto\": on a file system that can share extents (XFS, Btrfs), large tensors begin at "
           "whole blocks, and blocks that are equal in the source are cloned instead of written. "
           "\"always\": files have this layout on any file system, also in Hugging Face folders, "
           "whose files are otherwise those of the safetensors library. \"never\": no clones, no "
           "such layout."),
       keys::choice(
           "sha256sums", &Target::sha256sums, {"auto", "always", "never"},
           "\"auto\": a SHA256SUMS for sha256sum -c is written where all files are read back "
           "(run.verify = \"written\"); \"always\" also reads back what is shared with the source."),
       keys::text(
           "incremental_from", &Target::incremental_from,
           "A previous target of the same format and layout: its unchanged bytes are taken over, "
           "neither written nor read back. \"none\": there is no previous\ntarget yet, but record "
           "what the next run needs. \"\": do neither."),
       keys::flag(
           "incremental_links", &Target::incremental_links,
           "With target.incremental_from, on a file system that cannot share extents: files that are unchanged "
           "become hard links. A change of such a file\nin place changes both targets.")});
}

void add_changes(std::vector<Field>& out) {
  for (
      keys::Row<ModelChanges>& row : std::vector<keys::Row<ModelChanges>>{
          keys::number(
              "vocab_size", &ModelChanges::vocab_size, 0, most_vocabulary,
              "Rows of the vocabulary in the target: fewer, or more with target.new_rows; 0: those "
              "of the source. A tokenizer that has larger ids is refused."),
          keys::choice(
              "new_rows", &ModelChanges::new_rows, {"refuse", "zero", "mean"},
              "What rows hold that target.vocab_size adds: zeros, or the mean of all rows of the "
              "source, summed in F64 and rounded once."),
          keys::text("keep_layers", &ModelChanges::keep_layers,
                     "The decoder layers that the target has, such as \"0-15, 24-31\"; they are "
                     "renumbered. \"\": all."),
          keys::text(
              "keep_experts", &ModelChanges::keep_experts,
              "The routed experts that the target has, of all layers (\"0-63\") or layer by layer of "
              "the source (\"0-3: 0-63; 4-31: 32-95\"), with their\nrows of the router. \"\": all."),
          keys::text(
              "rows_from", &ModelChanges::rows_from,
              "A safetensors file with the rows that target.vocab_size adds, under the names of the "
              "weights, such as model.embed_tokens.weight. \"\": none."),
          keys::choice(
              "mtp", &ModelChanges::mtp, {"keep", "drop", "draft"},
              "\"drop\": the layers for multi-token prediction are left out, and the target's config "
              "says so. \"draft\": they alone are written, with the embedding and the output layer, "
              "as engines load a draft model; Hugging Face only."),
          keys::text("mtp_from", &ModelChanges::mtp_from,
                     "Of a Hugging Face source: another folder of the family, whose layers for "
                     "multi-token prediction the target has instead of the source's. \"\": none.")})
    out.push_back({keys::within(&JobSpec::target, keys::within(&Target::changes, std::move(row))),
                   "target",
                   {}});
}

void add_options(std::vector<Field>& out) {
  for (auto& [formats, row] : all_target_options())
    out.push_back({keys::within(&JobSpec::target, keys::within(&Target::options, std::move(row))),
                   "target", std::move(formats)});
}

void add_layout(std::vector<Field>& out) {
  add_axis(out, "tp", 1, "Tensor parallel size.");
  add_axis(out, "pp", 1, "Pipeline parallel size.");
  add_axis(out, "vpp", 1, "Model chunks per pipeline rank.");
  add_axis(out, "ep", 1, "Expert parallel size.");
  add_axis(out, "etp", 0, "Expert tensor parallel size; 0 means: equal to tp, in DCP 1.");
  add_layout_key(
      out, keys::number("layout.first_stage_layers", &Layout::first_stage_layers, -1, most_ranks,
                        "Decoder layers of the first pipeline rank; -1 means: an equal share."));
  add_layout_key(
      out, keys::number("layout.last_stage_layers", &Layout::last_stage_layers, -1, most_ranks,
                        "Decoder layers of the last pipeline rank; -1 means: an equal share."));
  add_layout_key(
      out, keys::text("layout.pipeline", &Layout::pipeline,
                      "The layers of each stage, such as \"Ettt|(tt|)*29,m|L\"; \"\" means: equal "
                      "shares."));
}

}  // namespace

void add_target_fields(std::vector<Field>& out) {
  add_common(out);
  add_changes(out);
  add_options(out);
  add_layout(out);
}

Field further_axis(std::string const& axis) {
  std::vector<Field> one;
  add_axis(one, axis, 1, "The size of a further parallel axis.");
  one.front().formats = {FormatId::torch_dist, FormatId::fsdp_dtensor};
  return one.front();
}

}  // namespace reshard::job
