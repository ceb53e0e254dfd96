// Jobs that keep every name: stored tensors are what they are, only boxes and files change.

#include "stages/plan/identity_plan.hpp"
#include "stages/plan/catalogue.hpp"

#include "tests/stages/plan/planning.hpp"
#include "tests/support/scratch_folder.hpp"

namespace reshard::test {
namespace {

MadeCheckpoint two_tensors() {
  MadeCheckpoint source = made_dcp({{"model.b", {4, 6}}, {"model.a", {3}, DType::f32}});
  return source;
}

PlanRequest kept(FormatId format) {
  PlanRequest request = request_for(format);
  request.read.map = "none";
  return request;
}

JobPlan identity(MadeCheckpoint const& source, PlanRequest const& request) {
  return make_identity_plan(source.value, request, PlanLimits{});
}

Lines names_of(JobPlan const& plan) {
  Lines names;
  for (Blob const& blob : plan.target.blobs) names.push_back(blob.name);
  std::ranges::sort(names);
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

// --- which jobs they are
// -------------------------------------------------------------------------------------------

TEST(KeepsNames, WhereTheJobSaysSoOrBothSidesArePlain) {
  MadeCheckpoint const dcp = two_tensors();
  MadeCheckpoint const folder = made_huggingface(sample_model("llama"));
  MadeCheckpoint const shares = made_megatron(sample_model("llama"));
  MadeCheckpoint const dist = made_torch_dist(sample_model("llama"), true);
  struct Case {
    char const* name;
    MadeCheckpoint const& source;
    FormatId target;
    char const* map;
    bool keeps;
  };
  for (Case const& one :
       std::vector<Case>{{"dcp to dcp", dcp, FormatId::dcp, "auto", true},
                         {"dcp to Hugging Face", dcp, FormatId::huggingface, "auto", true},
                         {"dcp to HDF5", dcp, FormatId::hdf5, "auto", true},
                         {"dcp through a map", dcp, FormatId::huggingface, "llama", false},
                         {"a folder to dcp", folder, FormatId::dcp, "auto", true},
                         {"a folder to a folder", folder, FormatId::huggingface, "auto", false},
                         {"a folder as it is", folder, FormatId::huggingface, "none", true},
                         {"a folder to Megatron", folder, FormatId::megatron, "auto", false},
                         {"shares to dcp", shares, FormatId::dcp, "auto", false},
                         {"torch_dist to torch_dist", dist, FormatId::torch_dist, "auto", false},
                         {"torch_dist as it is", dist, FormatId::torch_dist, "none", true}}) {
    PlanRequest request = request_for(one.target);
    request.read.map = one.map;
    EXPECT_EQ(keeps_names(one.source.value, request), one.keeps) << one.name;
  }
}

TEST(KeepsNames, NotWhereAConfigSaysWhatTheNamesMean) {
  PlanRequest request = request_for(FormatId::hdf5);
  EXPECT_TRUE(keeps_names(two_tensors().value, request));
  request.read.config = "/somewhere/config.json";
  EXPECT_FALSE(keeps_names(two_tensors().value, request));
  MadeCheckpoint described = two_tensors();
  described.value.model.config = sample_model("llama").config;
  EXPECT_FALSE(keeps_names(described.value, request_for(FormatId::hdf5)));
}

TEST(KeepsNames, NotWhereTheTargetsNamesAreThoseOfAMapAndTheConfigIsInTheFolder) {
  ScratchFolder const scratch("keeps_names");
  MadeCheckpoint source = two_tensors();
  source.value.format = &format_of(FormatId::dcp);  // which looks for files beside
  source.value.root = source.value.folder = scratch.path();
  write_text_file(scratch.path() / "config.json", sample_model("llama").config.dump());
  EXPECT_FALSE(keeps_names(source.value, request_for(FormatId::mistral)));
  EXPECT_TRUE(keeps_names(source.value, request_for(FormatId::dcp)));
}

// --- plans
// ---------------------------------------------------------------------------------------------------------

TEST(IdentityPlan, ToDcpKeepsKeysAndBytes) {
  JobPlan const plan = identity(two_tensors(), kept(FormatId::dcp));
  EXPECT_TRUE(plan.stored_names);
  EXPECT_EQ(paths_of(plan), Lines{"__0_0.distcp"});
  EXPECT_EQ(names_of(plan), (Lines{"model.a", "model.b"}));
  EXPECT_EQ(plan.plan.target_bytes, 4U * 6 * 2 + 3 * 4);
  ASSERT_FALSE(text_named(plan, ".metadata").empty());
  expect_sound(plan);
}

TEST(IdentityPlan, CutsByTheGridThatIsAskedFor) {
  MadeCheckpoint source(FormatId::dcp);
  source.begin_file().add_cut({"w", {8, 4}}, {4, 1});
  auto const chunks = [&](ChunkGrid::Kind kind, std::string const& mesh = {},
                          std::string const& placements = {}) {
    PlanRequest request = kept(FormatId::dcp);
    request.options.dcp = {kind, 2, mesh, placements, {}, {}};
    JobPlan const plan = identity(source, request);
    expect_sound(plan);
    return plan.target.blobs.size();
  };
  EXPECT_EQ(chunks(ChunkGrid::Kind::source), 4U);
  EXPECT_EQ(chunks(ChunkGrid::Kind::whole), 1U);
  EXPECT_EQ(chunks(ChunkGrid::Kind::ranks), 2U);
  EXPECT_EQ(chunks(ChunkGrid::Kind::mesh, "tp=2", "*: S1"), 2U);
}

TEST(IdentityPlan, ARuleThatDecidesNothingIsToldOf) {
  PlanRequest request = kept(FormatId::dcp);
  request.options.dcp = {ChunkGrid::Kind::mesh, 1, "tp=2", "head.*: S0; *: R", {}, {}};
  Lines const warnings = identity(two_tensors(), request).warnings;
  EXPECT_EQ(std::ranges::count(warnings, "target.placements: the rule 'head.*' applies to no key"),
            1);
}

TEST(IdentityPlan, CutsAndPutsPrefixes) {
  PlanRequest request = kept(FormatId::dcp);
  request.read.prefix = "model.";
  request.options.dcp.prefix = "ema.";
  EXPECT_EQ(names_of(identity(two_tensors(), request)), (Lines{"ema.a", "ema.b"}));
  MadeCheckpoint more = two_tensors();
  more.add_file({{"head", {2}}});
  JobPlan const plan = identity(more, request);
  EXPECT_EQ(names_of(plan), (Lines{"ema.a", "ema.b"}));
  EXPECT_EQ(
      plan.warnings.back(),
      "1 stored tensor (head) does not begin with 'model.' (source.prefix): they are left out");
  more.add_file({{"optimizer.state.a.exp_avg", {2}}});
  request.read.drop_optimizer = true;
  Lines const lines = identity(more, request).warnings;
  EXPECT_EQ(lines.back(), plan.warnings.back());
  EXPECT_EQ(std::ranges::count(lines,
                               "1 key of optimizer state is dropped (source.optimizer = \"drop\")"),
            1);
}

/// What .metadata of the target says of the nested state dict.
std::map<std::string, dcp::Path> nested(MadeCheckpoint const& source, PlanRequest const& request) {
  std::string const text = text_named(identity(source, request), ".metadata");
  ScratchFolder const scratch("nested");
  write_text_file(scratch.path() / ".metadata", text);
  dcp::Metadata const metadata =
      dcp::read_metadata(File::open_for_reading(scratch.path() / ".metadata"));
  std::map<std::string, dcp::Path> paths;
  for (auto const& [key, path] : metadata.planner_data.value()) paths[key] = path;
  return paths;
}

TEST(IdentityPlan, KeysThatDescribeAModelDescribeNothingHere) {
  auto const expect = [](std::string_view words, auto const& change) {
    PlanRequest request = kept(FormatId::dcp);
    change(request);
    expect_refused(two_tensors(), request, ErrorKind::usage, words);
  };
  expect("[source] prefix = \"model\": 'model.b' would become '.b'",
         [](PlanRequest& request) { request.read.prefix = "model"; });
  expect("[source] tp = 2: names are kept", [](PlanRequest& request) { request.read.tp = 2; });
  expect("[source] etp = 4: names are kept", [](PlanRequest& request) { request.read.etp = 4; });
  expect("[source] config = \"/ckpt/config.json\": names are kept",
         [](PlanRequest& request) { request.read.config = "/ckpt/config.json"; });
}

TEST(IdentityPlan, NamesThatRanksUseForDifferentPartsAreNoNames) {
  std::string const sentence = refused(ErrorKind::usage, [] {
    catalogue(made_megatron(sample_model("llama"), {{.tp = 2, .etp = 2}}).value,
              kept(FormatId::megatron));
  });
  EXPECT_NE(sentence.find("its ranks use the same names for different parts"), std::string::npos)
      << sentence;
}

TEST(IdentityPlan, PathsOfTheNestedDictFollowTheirKeys) {
  using Path = dcp::Path;
  MadeCheckpoint source = two_tensors();
  source.add_file({{"model.blocks.0.w", {2}}});
  source.value.chunked.paths = {{"model.a", {"model", "a"}},
                                {"model.b", {"model", "b"}},
                                {"model.blocks.0.w", {"model", "blocks", std::int64_t{0}, "w"}}};
  PlanRequest request = kept(FormatId::dcp);
  EXPECT_EQ(nested(source, request),
            (std::map<std::string, Path>(source.value.chunked.paths->begin(),
                                         source.value.chunked.paths->end())));
  request.read.prefix = "model.";
  request.options.dcp.prefix = "ema.net.";
  EXPECT_EQ(nested(source, request),
            (std::map<std::string, Path>{
                {"ema.net.a", {"ema", "net", "a"}},
                {"ema.net.b", {"ema", "net", "b"}},
                {"ema.net.blocks.0.w", {"ema", "net", "blocks", std::int64_t{0}, "w"}}}));
  request.options.dcp.prefix = "ema_";  // no name of its own: it begins the first one
  EXPECT_EQ(nested(source, request).at("ema_a"), (Path{"ema_a"}));
  request.read.prefix = "model.blocks.";
  request.options.dcp.prefix = "";
  EXPECT_EQ(nested(source, request), (std::map<std::string, Path>{{"0.w", {"0.w"}}}))
      << "a list that loses its name has no place any more";
}

TEST(IdentityPlan, KeysWithoutAPathHaveTheirOwn) {
  EXPECT_EQ(nested(two_tensors(), kept(FormatId::dcp)),
            (std::map<std::string, dcp::Path>{{"model.a", {"model.a"}}, {"model.b", {"model.b"}}}));
}

TEST(IdentityPlan, APrefixThatNoKeyHasIsAMistake) {
  PlanRequest request = kept(FormatId::dcp);
  request.read.prefix = "ema.";
  std::string const sentence = refused(ErrorKind::usage, [&] { identity(two_tensors(), request); });
  EXPECT_NE(sentence.find("[source] prefix = \"ema.\": /made has no such key"), std::string::npos)
      << sentence;
}

TEST(IdentityPlan, ToHuggingFaceHasNoRoomForOptimizerStateAndObjects) {
  MadeCheckpoint source = two_tensors();
  source.add_file({{"optim.state.a.exp_avg", {3}, DType::f32}}).add_object("step");
  PlanRequest request = kept(FormatId::huggingface);
  std::string const sentence = refused(ErrorKind::source, [&] { identity(source, request); });
  EXPECT_NE(sentence.find("holds optimizer state (optim.state.a.exp_avg)"), std::string::npos)
      << sentence;
  request.read.drop_optimizer = true;
  JobPlan const plan = identity(source, request);
  EXPECT_EQ(names_of(plan), (Lines{"model.a", "model.b"}));
  EXPECT_TRUE(std::ranges::any_of(plan.warnings, [](std::string const& warning) {
    return warning == "dropped, because safetensors files hold tensors only: step";
  })) << fmt::format("{}", fmt::join(plan.warnings, "\n"));
  expect_sound(plan);
}

TEST(IdentityPlan, ObjectsGoAlongToDcp) {
  MadeCheckpoint source = two_tensors();
  source.add_object("step");
  JobPlan const plan = identity(source, kept(FormatId::dcp));
  ASSERT_EQ(plan.opaque.size(), 1U);
  EXPECT_EQ(plan.opaque.front().bytes, 100U);
  EXPECT_EQ(plan.plan.target_bytes, 4U * 6 * 2 + 3 * 4 + 100);
}

TEST(IdentityPlan, ObjectsThatWouldRunCodeAreRefused) {
  MadeCheckpoint source = two_tensors();
  source.add_object("step");
  source.value.chunked.looks.back() = {{"os.system", false}, ""};
  std::string const sentence =
      refused(ErrorKind::source, [&] { identity(source, kept(FormatId::dcp)); });
  EXPECT_NE(sentence.find("\"os.system\""), std::string::npos) << sentence;
}

TEST(IdentityPlan, ToHdf5HasAContainerOfStoredNames) {
  JobPlan const plan = identity(two_tensors(), kept(FormatId::hdf5));
  EXPECT_EQ(paths_of(plan), Lines{"model.h5"});
  EXPECT_EQ(names_of(plan), (Lines{"model.a", "model.b"}));
  EXPECT_FALSE(plan.files.front().frame->skeleton().empty());
  expect_sound(plan);
}

TEST(IdentityPlan, TorchDistAsItIsKeepsItsRun) {
  MadeCheckpoint const source = made_torch_dist(sample_model("llama"), true);
  JobPlan const plan = identity(source, kept(FormatId::torch_dist));
  EXPECT_EQ(texts_of(plan),
            (Lines{"iter_0000007/.metadata", "iter_0000007/common.pt", "iter_0000007/metadata.json",
                   "latest_checkpointed_iteration.txt"}));
  EXPECT_EQ(plan.target.blobs.size(), source.value.stored.tensors.size());
  expect_sound(plan);
}

TEST(IdentityPlan, HolesAndOverlapsAreRefused) {
  MadeCheckpoint source(FormatId::dcp);
  source.begin_file().add_cut({"w", {8, 4}}, {4, 1});
  MadeCheckpoint hole = source;
  hole.value.stored.tensors.change(0, [](StoredTensor& one) { --one.chunk_count; });
  std::string sentence = refused(ErrorKind::source, [&] { identity(hole, kept(FormatId::dcp)); });
  EXPECT_NE(sentence.find("w"), std::string::npos);
  MadeCheckpoint overlap = source;
  StoredTable& stored = overlap.value.stored;
  StoredChunk moved = stored.chunks[3];
  moved.offsets = stored.lists.add(std::vector<Index>{5, 0});
  stored.chunks.set(3, moved);
  refused(ErrorKind::source, [&] { identity(overlap, kept(FormatId::dcp)); });
}

TEST(IdentityPlan, NamesOfOtherFormatsNeedAMap) {
  for (FormatId const format : {FormatId::megatron, FormatId::torch_dist, FormatId::fsdp_dtensor}) {
    std::string const sentence =
        refused(ErrorKind::usage, [&] { identity(two_tensors(), kept(format)); });
    EXPECT_NE(sentence.find("has its own names, which only a map can give"), std::string::npos)
        << sentence;
  }
  std::string const sentence = refused(ErrorKind::usage, [&] {
    identity(made_megatron(sample_model("llama")), kept(FormatId::dcp));
  });
  EXPECT_NE(sentence.find("only a map can put together"), std::string::npos) << sentence;
}

// --- names and the config beside them
// ---------------------------------------------------------------------------------

/// A DCP folder with llama's config beside it.
MadeCheckpoint beside_llama(std::vector<MadeTensor> const& tensors) {
  MadeCheckpoint source = made_dcp(tensors);
  source.value.model.beside = made_huggingface(sample_model("llama")).value.model.beside;
  source.value.model.beside->sidecars = {"tokenizer.json"};
  return source;
}

std::vector<MadeTensor> llama_tensors(std::size_t left_out) {
  std::vector<MadeTensor> tensors;
  MadeCheckpoint const llama = made_huggingface(sample_model("llama"));
  for (StoredTensor const& tensor : llama.value.stored.tensors)
    if (left_out > 0)
      --left_out;
    else
      tensors.push_back({tensor.name, tensor.shape});
  return tensors;
}

TEST(IdentityNames, OfTheConfigAreTakenInSilence) {
  PlanRequest request = request_for(FormatId::huggingface);
  EXPECT_EQ(identity(beside_llama(llama_tensors(0)), request).warnings, Lines());
}

TEST(IdentityNames, OfAnotherModelAreRefusedUnlessTheJobSaysSo) {
  MadeCheckpoint const source = beside_llama({{"a", {2}}, {"b", {3}}});
  PlanRequest request = request_for(FormatId::huggingface);
  std::string const sentence = refused(ErrorKind::source, [&] { identity(source, request); });
  EXPECT_NE(sentence.find("name a map with the source's names"), std::string::npos) << sentence;
  request.read.map = "none";
  EXPECT_EQ(identity(source, request).warnings.size(), 1U);
}

TEST(IdentityNames, ThatLackAFewAreToldOf) {
  Lines const warnings =
      identity(beside_llama(llama_tensors(2)), request_for(FormatId::huggingface)).warnings;
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_NE(warnings.front().find("transformers would fill them with random values"),
            std::string::npos)
      << warnings.front();
}

/// llama's tensors, some of them under other names.
MadeCheckpoint renamed(std::map<std::string, std::string> const& names) {
  std::vector<MadeTensor> tensors = llama_tensors(0);
  for (MadeTensor& tensor : tensors)
    if (auto const other = names.find(tensor.name); other != names.end())
      tensor.name = other->second;
  return beside_llama(tensors);
}

TEST(IdentityNames, AModuleInAModuleIsNoPartOfAWeight) {
  std::string const module = "model.layers.0.mlp.down_proj.";
  PlanRequest const request = request_for(FormatId::huggingface);
  for (char const* part : {"weight_packed", "qweight", "weight.absmax", "_weight_qdata"})
    EXPECT_EQ(identity(renamed({{module + "weight", module + part}}), request).warnings, Lines())
        << part;
  Lines const warnings =
      identity(renamed({{module + "weight", module + "linear.weight"}}), request).warnings;
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_NE(warnings.front().find("(" + module + "weight)"), std::string::npos) << warnings.front();
}

TEST(IdentityNames, OfAModelThatPeftHasWrappedAreRefused) {
  std::string const module = "model.layers.0.mlp.down_proj.";
  MadeCheckpoint const source = renamed({{module + "weight", module + "base_layer.weight"}});
  PlanRequest request = request_for(FormatId::huggingface);
  std::string const words = "has wrapped an adapter around ('" + module + "base_layer.weight')";
  expect_refused(source, request, ErrorKind::usage, words);
  request.read.map = "none";
  EXPECT_EQ(identity(source, request).warnings.size(), 1U);
  request = request_for(FormatId::torch_dist);
  request.read.map = "llama";
  MadeCheckpoint described = source;
  described.value.model.config = described.value.model.beside->config;
  expect_refused(described, request, ErrorKind::usage, words);
}

TEST(IdentityNames, OfATiedHeadAreACopy) {
  MadeCheckpoint source = beside_llama(llama_tensors(0));
  auto const copies = [](MadeCheckpoint const& made, PlanRequest const& request) {
    JobPlan const plan = identity(made, request);
    Lines lines;
    for (auto const& [copy, of] : plan.copies.declared)
      lines.push_back(plan.model->tensor(copy).name + " of " + plan.model->tensor(of).name);
    return lines;
  };
  PlanRequest request = request_for(FormatId::huggingface);
  EXPECT_EQ(copies(source, request), Lines());
  source.value.model.beside->config.set("tie_word_embeddings", true);
  EXPECT_EQ(copies(source, request), Lines{"lm_head.weight of model.embed_tokens.weight"});
  EXPECT_EQ(copies(source, request_for(FormatId::dcp)), Lines()) << "it holds both";
}

TEST(IdentityNames, OfAFolderAsItIsAreItsOwnMatter) {
  MadeCheckpoint source = made_huggingface(sample_model("llama"));
  source.value.stored.tensors.keep_if(
      [kept = 0](StoredTensor const&) mutable { return kept++ < 3; });
  source.value.model.beside->sidecars = {"tokenizer.json"};
  PlanRequest request = kept(FormatId::huggingface);
  EXPECT_EQ(identity(source, request).warnings, Lines());
  request.options.dcp.prefix = "ema.";
  EXPECT_EQ(identity(source, request).warnings.size(), 1U) << "with other names they are looked at";
}

TEST(IdentityCatalogue, HasATensorForEachName) {
  JobPlan const plan = identity_catalogue(two_tensors().value, {});
  ASSERT_EQ(plan.model->tensors().size(), 2U);
  EXPECT_EQ(plan.source.blobs.size(), 2U);
  EXPECT_TRUE(plan.files.empty());
}

}  // namespace
}  // namespace reshard::test
