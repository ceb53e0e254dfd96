#include "stages/plan/source/catalog/source_names.hpp"
#include "stages/plan/adapter/adapter_source.hpp"
#include "stages/plan/source/facts/other_form.hpp"

#include "tests/stages/plan/planning.hpp"

namespace reshard::test {
namespace {

/// The family's side of a small llama.
struct Names {
  Names()
      : sample(sample_model("llama")),
        family(map_file("llama")),
        core(map_file("mcore")),
        model(family, core, {sample.config, "config.json", 0}),
        side(model, family, {}),
        names(side.names(nullptr)) {}

  std::string unexplained(std::string const& tensor) const {
    return refused(ErrorKind::source,
                   [&] { fail_unexplained("here", tensor, names, model, "llama.toml"); });
  }

  SampleModel sample;
  MapFile family, core;
  Model model;
  Side side;
  std::vector<StoredName> names;
};

void expect_says(std::string const& sentence, std::string_view words) {
  EXPECT_NE(sentence.find(words), std::string::npos) << sentence;
}

TEST(Unexplained, ANameBeyondTheSizesIsTold) {
  expect_says(Names().unexplained("model.layers.9.mlp.up_proj.weight"),
              "here: 'model.layers.9.mlp.up_proj.weight' is beyond the sizes of config.json: the "
              "last such name is 'model.layers.5.mlp.up_proj.weight'");
}

TEST(Unexplained, ANameThatOtherLayersHaveIsTold) {
  Names names;
  std::erase_if(names.names, [](StoredName const& name) {
    return name.name == "model.layers.2.mlp.up_proj.weight";
  });
  expect_says(names.unexplained("model.layers.2.mlp.up_proj.weight"),
              "here: 'model.layers.2.mlp.up_proj.weight' has no place in the model of config.json, "
              "which has 'model.layers.");
}

TEST(Unexplained, TheNearestNameIsTold) {
  expect_says(Names().unexplained("model.layers.0.mlp.up_pro.weight"),
              "matches no entry of llama.toml for this model; the nearest name is "
              "'model.layers.0.mlp.up_proj.weight'");
  std::string const strange = Names().unexplained("zzzzzzzz");
  EXPECT_EQ(strange.find("nearest"), std::string::npos) << strange;
}

TEST(Unexplained, APartOfAnAdapterIsTold) {
  expect_says(Names().unexplained("model.layers.x.mlp.up_proj.lora_A.weight"),
              "it is part of an adapter (LoRA)");
}

TEST(Adapters, AreToldByTheirNames) {
  auto const holds = [](Lines const& names) {
    std::vector<MadeTensor> tensors;
    for (std::string const& name : names) tensors.push_back({name, {2}});
    MadeCheckpoint const source = made_dcp(tensors);
    return holds_adapter(source.value, view_of(source.value));
  };
  auto const refusal = [&](Lines const& names) {
    return refused(ErrorKind::source, [&] { holds(names); });
  };
  EXPECT_TRUE(holds(
      {"b.lora_B.weight", "a.adapter.linear_in.weight", "c.adapter.adapter_q.linear_in.weight"}));
  EXPECT_FALSE(holds({"a.lora_A.weight", "b.weight"})) << "the catalogue says what is strange";
  EXPECT_FALSE(holds({}));
  expect_says(refusal({"c.to_wrap.weight", "b.to_wrap.weight", "d.weight"}),
              "'b.to_wrap.weight' is a weight that an adapter (LoRA) is wrapped around");
  expect_says(refusal({"a.lora_A.weight", "a.lora_magnitude_vector"}), "a DoRA adapter");
  expect_says(refusal({"a.lora_embedding_A"}), "an adapter of an embedding");
  expect_says(refusal({"a.lora_B.bias"}), "a bias of an adapter");
}

TEST(Adapters, TellHowAPartOfAModelIsCalled) {
  MapFile const core = map_file("mcore");
  MapAdapter const& form = adapter_form(core.adapters, "peft");
  auto const has = [&](Lines const& modules, std::string_view name, bool with_base) {
    std::vector<MadeTensor> tensors;
    for (std::string const& module : modules)
      tensors.push_back({"base_model.model." + module + ".lora_A.weight", {2}});
    MadeCheckpoint const source = made_dcp(tensors);
    std::function<bool(std::string_view)> base;
    if (with_base) base = [](std::string_view) { return true; };
    return has_adapter_of(view_of(source.value), {"peft", false, {}}, form, name, base);
  };
  Lines const inside{"model.language_model.layers.0.mlp.up_proj"};
  Lines const outside{"model.layers.0.mlp.up_proj"};
  char const* const norm = "model.language_model.norm.weight";
  EXPECT_TRUE(has(inside, norm, true));
  EXPECT_FALSE(has(outside, norm, true)) << "though the base calls it so";
  EXPECT_TRUE(has({"lm_head"}, norm, true)) << "the base decides where the adapter has nothing";
  EXPECT_FALSE(has(inside, norm, false));
  EXPECT_TRUE(has(outside, "model.layers.0.mlp.up_proj.weight", false));
  EXPECT_TRUE(has(outside, "*layers.*.mlp.up_proj.weight", false));
  EXPECT_FALSE(has({"model.layers.0.mlp.experts.1.up_proj"},
                   "model.layers.0.mlp.experts.gate_up_proj", true))
      << "an adapter of single experts is of single experts";
  EXPECT_TRUE(has(outside, "model.layers.0.mlp.experts.gate_up_proj", true));
}

TEST(CheckStored, OtherShapesAndCodesWithoutAScaleAreRefused) {
  Names const all;
  std::vector<Index> const shape{48, 24};
  auto const entry =
      std::ranges::find(all.names, "model.layers.0.mlp.up_proj.weight", &StoredName::name)->entry;
  std::string form;
  auto const check = [&](DType dtype, std::vector<Index> const& found) {
    check_stored("here", "w", dtype, found, shape, all.side, entry, all.model,
                 [&] { return form; });
  };
  EXPECT_NO_THROW(check(DType::bf16, shape));
  expect_says(refused(ErrorKind::source,
                      [&] {
                        check(DType::bf16, {24, 48});
                      }),
              "here: 'w' is BF16 [24, 48], ");
  for (DType const dtype : {DType::f8_e4m3, DType::f8_e5m2})
    expect_says(refused(ErrorKind::source, [&] { check(dtype, shape); }),
                "no scale in a form that a map describes is stored with it");
  form = "Beside it there is more";
  expect_says(refused(ErrorKind::source, [&] { check(DType::u8, {2}); }),
              "with the sizes of config.json. Beside it there is more.");
  expect_says(refused(ErrorKind::source, [&] { check(DType::f8_e4m3, shape); }),
              "its values are lost. Beside it there is more.");
}

TEST(Unexplained, WhatStandsBesideAQuantisedWeightIsTold) {
  Names const all;
  auto const told = [&](std::string const& tensor, std::string const& method) {
    return refused(ErrorKind::source, [&] {
      fail_unexplained("here", tensor, all.names, all.model, "mcore.toml and llama.toml", method);
    });
  };
  std::string const scales = "model.layers.0.mlp.up_proj.SCB";
  expect_says(told(scales, "bitsandbytes"),
              "stands beside the weight 'model.layers.0.mlp.up_proj.weight', and matches no entry");
  expect_says(told(scales, "bitsandbytes"), "the model is quantised by bitsandbytes");
  expect_says(told(scales, ""),
              "add its name to `drop` in a copy of llama.toml, and name the copy");
  expect_says(told("zzzz", "bitsandbytes"), "add its name to `drop`");
  expect_says(all.unexplained("zzzz"), "in a copy of llama.toml, and name the copy with model.map");
}

TEST(OtherForm, ConfigJsonStatesTheMethod) {
  auto const stated = [](Json settings) {
    return quantised_by(Json().set("quantization_config", std::move(settings)));
  };
  EXPECT_EQ(quantised_by(Json()), "");
  EXPECT_EQ(stated(Json().set("quant_method", "gptq").set("bits", std::int64_t{4})),
            "gptq (4 bits)");
  EXPECT_EQ(stated(Json().set("quant_method", "modelopt").set("quant_algo", "FP8_PB_WO")),
            "modelopt (FP8_PB_WO)");
  EXPECT_EQ(stated(Json().set("format", "int-quantized")), "an unnamed method (int-quantized)");
  EXPECT_EQ(quantised_by(Json().set("text_config", Json().set("quantization_config",
                                                              Json().set("quant_method", "awq")))),
            "awq");
}

TEST(OtherForm, TensorsOfAModuleAndScalesAroundItAreListed) {
  Names const all;
  auto const beside = [&](Lines const& stored, std::string const& weight) {
    std::vector<MadeTensor> tensors;
    for (std::string const& name : stored) tensors.push_back({name, {2, 3}});
    MadeCheckpoint const source = made_dcp(tensors);
    NameTable table;
    for (std::size_t t = 0; t < source.value.stored.tensors.size(); ++t)
      table.emplace(source.value.stored.tensors[t].name.text(), t);
    return unnamed_beside(weight, table, all.names, source.value.stored, 2);
  };
  std::string const weight = "model.layers.0.mlp.up_proj.weight";
  EXPECT_EQ(beside({"model.layers.0.mlp.up_proj.qweight"}, weight),
            "'model.layers.0.mlp.up_proj.qweight' BF16 [2, 3]");
  EXPECT_EQ(beside({"model.layers.0.mlp.gate_proj.weight", "model.layers.0.mlp.odd"}, weight), "")
      << "of a module around it only scales";
  EXPECT_EQ(beside({"model.layers.0.mlp.up_scale"}, weight),
            "'model.layers.0.mlp.up_scale' BF16 [2, 3]");
  EXPECT_EQ(beside({weight, "model.norm.weight"}, weight), "");
}

TEST(UnreadNote, CountsInPlainEnglish) {
  EXPECT_EQ(unread_note({"a"}, "m."),
            "1 stored tensor (a) does not begin with 'm.' (source.prefix)");
  EXPECT_EQ(unread_note({"a", "b"}, "m."),
            "2 stored tensors (a, b) do not begin with 'm.' (source.prefix)");
}

TEST(NoteFound, MarksTheTensorsOfTheNamesThatAreThere) {
  Names const all;
  std::vector<bool> found;
  note_found(
      all.model, all.side, all.names,
      [](std::string const& name) { return name == "lm_head.weight"; }, found);
  ASSERT_EQ(found.size(), all.model.tensors().size());
  EXPECT_EQ(std::ranges::count(found, true), 1);
  auto const head = static_cast<std::size_t>(std::ranges::find(found, true) - found.begin());
  EXPECT_EQ(all.model.tensors()[head].name, "lm_head");
}

/// What is left of a llama by Megatron's own map where the source holds these tensors alone.
Lines settled(Lines const& stored) {
  MapFile const core = map_file("mcore");
  Model model(core, core, {sample_model("llama").args, "args", 0});
  apply_present(model, core);
  std::vector<bool> found;
  for (LogicalTensor const& tensor : model.tensors())
    found.push_back(std::ranges::find(stored, tensor.name.text()) != stored.end());
  SideOptions options;
  options.local = true;
  options.options = {{"form", "grouped"}, {"spec", "te"}};
  settle_optional(model, Side(model, core, std::move(options)), found);
  Lines names;
  for (std::size_t t = 0; t < model.tensors().size(); ++t)
    if (model.exists(TensorId(t))) names.push_back(model.tensors()[t].name);
  return names;
}

bool holds(Lines const& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

TEST(SettleOptional, WhatTheSourceMayLackAndLacksIsNoPartOfTheModel) {
  Lines const names = settled({"attn.o_bias"});
  EXPECT_TRUE(holds(names, "attn.o_bias"));
  EXPECT_TRUE(holds(names, "attn.o")) << "required, so its absence is reported later";
  for (char const* absent : {"attn.post_norm", "ffn.down_bias", "attn.sinks"})
    EXPECT_FALSE(holds(names, absent)) << absent;
}

TEST(SettleOptional, AConditionSeesWhatTheSourceHolds) {
  struct Case {
    Lines stored;
    bool may_lack_norms;
  };
  for (Case const& c :
       std::vector<Case>{{{}, false},
                         {{"attn.post_norm"}, false},
                         {{"ffn.post_norm"}, false},
                         {{"attn.post_norm", "ffn.post_norm"}, true},
                         {{"attn.post_norm", "ffn.post_norm", "attn.norm"}, false},
                         {{"attn.post_norm", "ffn.post_norm", "ffn.norm"}, false}}) {
    Lines const names = settled(c.stored);
    EXPECT_EQ(holds(names, "attn.norm"), !c.may_lack_norms) << c.stored.size();
    EXPECT_EQ(holds(names, "ffn.norm"), !c.may_lack_norms) << c.stored.size();
  }
}

TEST(EachStored, VisitsWhatSharesHaveInCommonOnceAndOthersByTheirView) {
  auto const visited = [](Checkpoint const& source) {
    Lines names;
    each_stored(source, view_of(source),
                [&](std::string const& name, std::vector<Index> const&) { names.push_back(name); });
    std::ranges::sort(names);
    return names;
  };
  MadeCheckpoint shares(FormatId::megatron);
  for (int file = 0; file < 2; ++file) shares.add_share(SharePlace(), {{"a", {2}}});
  shares.add_share(SharePlace(), {{"a", {3}}});
  EXPECT_EQ(visited(shares.value), (Lines{"a", "a"})) << "once for each shape";
  MadeCheckpoint dist(FormatId::torch_dist);
  dist.add_file({{"model.decoder.a", {2}}, {"optimizer.state.exp_avg.decoder.a", {2}}});
  EXPECT_EQ(visited(dist.value), Lines{"decoder.a"}) << "state is no weight";
}

}  // namespace
}  // namespace reshard::test
