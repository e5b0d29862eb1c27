"""A document as `bmrjax sparsify` writes it, for tests that damage one."""

DOCUMENT = {
    "accuracy": None, "nll": 1.0, "ece": None, "rmse": 0.5, "vfe_per_datum": 1.5, "sparsity": 0.25,
    "sparsity_per_layer": {"layer": 0.25}, "kept": 3, "total": 4, "target_mean": [1.0],
    "target_scale": [2.0], "input_mean": [[0.0, 1.0]], "input_scale": [[1.0, 1.0]], "outputs": 1,
    "columns": ["a", "b"], "inputs_kept": ["a"], "target_names": ["y"], "class_names": None,
    "table": [{"name": "a", "levels": None, "fill": None}], "notes": [], "trivial": {"rmse": 1.0},
    "rmse_by_target": [1.0], "trivial_rmse_by_target": [2.0],
    "findings": [{"code": "scale", "message": "m", "advice": "a"}], "compile_seconds": 1.0,
    "seconds": 2.0, "step_ms": 0.1, "skipped_steps": 2, "test_rows": 30, "validation_rows": 20, "fit_kept": 2,
    "num_classes": None, "input_shape": [2],
    "config": {"data": "d.csv", "net": "mlp", "method": "bmr", "num_epochs": 3,
    "validation": 0.15, "within": 1.0},
    "history": [{"vfe": 1.0, "steps": 3, "taken_back": False}],
    "path": [{"vfe_per_datum": 1.5, "epoch": 3, "kept": 3, "total": 4, "metrics": {"nll": None}}],
}  # fmt: skip
