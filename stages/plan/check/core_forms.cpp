#include "stages/plan/check/core_forms.hpp"

#include "core/formats/megatron/mcore/mesh.hpp"
#include "core/formats/torch_dist/dist_tensors.hpp"

namespace reshard {
namespace {

using Demand = CoreForm::Demand;

constexpr Index most_ranks = 64;  // of a mesh that is checked

SideOptions options_of(char const* form, char const* spec) {
  SideOptions options;
  options.options = {{"form", form}, {"spec", spec}, {"mtp_block", "mtp_model_layer"}};
  return options;
}

CoreForm local_form(char const* form, char const* spec, Demand demand = Demand::proof) {
  CoreForm result{fmt::format("mp_rank files · {} · {}", form, spec), options_of(form, spec), false,
                  demand};
  result.options.local = true;
  return result;
}

CoreForm front_form(char const* title, char const* form, char const* spec, bool stacked,
                    Demand demand) {
  bool const fsdp = std::string_view(form).starts_with("fsdp");
  CoreForm result{fmt::format("{} · {}", title, spec), options_of(form, spec), false, demand};
  result.options.in_front = true;
  result.options.options["stacked"] = Json(stacked ? 1 : 0);
  result.options.options["vis_stacked"] = Json(stacked ? 1 : 0);
  result.options.options["halves"] = Json(fsdp ? 1 : 0);
  result.options.options["parts"] = Json(fsdp ? 0 : 1);
  return result;
}

CoreForm mesh_form(megatron::MeshSizes const& mesh) {
  CoreForm result = local_form("grouped", "te", Demand::proof_where_possible);
  result.title =
      fmt::format("mp_rank files · tp {} · pp {}{} · ep {} · etp {}", mesh.tp, mesh.pp,
                  mesh.vpp > 1 ? fmt::format(" · vpp {}", mesh.vpp) : "", mesh.ep, mesh.etp);
  result.options.mesh = megatron::mesh_of(mesh);
  result.uneven_pipeline = mesh.vpp == 1;
  return result;
}

/// The smallest number of ranks above one over which so many things can be dealt evenly; 1 when
/// there is none.
int few_ranks(Index count) {
  for (int ranks = 2; ranks <= 8; ++ranks)
    if (count % ranks == 0 && count > 0) return ranks;
  return 1;
}

void add_meshes(Model const& model, std::vector<CoreForm>& forms) {
  Index const layers = model_count(model, "L");
  int const pp = layers >= 2 ? 2 : 1;
  int const ep = few_ranks(model_count(model, "expert"));
  forms.push_back(mesh_form({2, pp, 1, ep, 1}));
  if (ep > 1) forms.push_back(mesh_form({2, 1, 1, ep, 2}));
  if (layers % 4 == 0) forms.push_back(mesh_form({1, 2, 2, ep, 1}));
  // With more ranks than groups, queries, keys and values are cut inside a group.
  Index const ranks = 2 * model_count(model, "group");
  if (ranks > 2 && ranks <= most_ranks && model_count(model, "expert") == 0)
    forms.push_back(mesh_form({narrow<int>(ranks), 1, 1, 1, 1}));
}

}  // namespace

Index model_count(Model const& model, char const* word) {
  Json const value = model.value(word);
  return value.integer() == nullptr ? 0 : *value.integer();
}

std::vector<CoreForm> core_forms(Model const& model, MapFile const& core) {
  bool const experts = model_count(model, "expert") > 0;
  std::vector<CoreForm> forms;
  for (char const* spec : {"te", "local"}) {
    forms.push_back(local_form("grouped", spec));
    if (experts) forms.push_back(local_form("sequential", spec));
  }
  if (experts) forms.push_back(local_form("flat", "te", Demand::nothing));
  add_meshes(model, forms);
  CoreForm stacked = front_form("torch_dist, layers stacked", "dist", "te", true, Demand::proof);
  if (layers_are_alike(Side(model, core, stacked.options), model_count(model, "L")))
    forms.push_back(std::move(stacked));
  for (char const* spec : {"te", "local"})
    forms.push_back(front_form("torch_dist", "dist", spec, false, Demand::proof));
  if (model_count(model, "M") == 0)
    forms.push_back(front_form("fsdp_dtensor", "fsdp", "te", false, Demand::nothing));
  return forms;
}

SideProof prove_form(Model const& model, MapFile const& core, CoreForm const& form, Detail detail) {
  Side const side(model, core, form.options);
  if (!form.options.local) {
    SidePlace const whole;
    return prove_side(model, side, {&whole, 1}, detail);
  }
  Mesh const& mesh = form.options.mesh;
  megatron::MeshSizes const sizes = megatron::sizes_of(mesh);
  PipelineSpec pipeline;
  pipeline.ranks = sizes.pp;
  pipeline.chunks_per_rank = sizes.vpp;
  pipeline.decoder_layers = narrow<int>(model_count(model, "L"));
  pipeline.mtp_layers = narrow<int>(model_count(model, "M"));
  if (form.uneven_pipeline && sizes.pp > 1)
    pipeline.first_stage_layers =
        pipeline.decoder_layers - pipeline.decoder_layers / sizes.pp * (sizes.pp - 1);
  std::vector<PipelineChunk> const chunks = pipeline_chunks(pipeline);
  std::vector<SidePlace> places;
  for (PipelineChunk const& chunk : chunks)
    for (MeshPlace const& place : megatron::stage_places(mesh)) places.push_back({place, &chunk});
  return prove_side(model, side, places, detail);
}

}  // namespace reshard
